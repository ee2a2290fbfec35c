module github.com/go-rdma/rdma/test

go 1.26.0

require (
	github.com/go-rdma/rdma v0.0.0
	github.com/hashicorp/yamux v0.1.2
	github.com/quic-go/quic-go v0.65.0
	github.com/redis/go-redis/v9 v9.23.0
	github.com/stretchr/testify v1.12.1
	golang.org/x/net v0.62.0
	golang.org/x/sys v0.50.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/crypto v0.58.0 // indirect
)

replace github.com/go-rdma/rdma => ../
