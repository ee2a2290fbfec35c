// Package testnet gives tests a network of their own. UDP port 4791 and the names that processes share it
// by belong to the network namespace: there nobody else's packets arrive, and no process stops that packets were for.
package testnet

import "os"

const env = "GO_RDMA_TEST_NETWORK"

// Own tells whether this process has a network of its own, or is a child of one that has.
func Own() bool { return os.Getenv(env) != "" }
