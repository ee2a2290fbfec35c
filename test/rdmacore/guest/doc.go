// Package guest has the tests of the provider rdmacore that need an RDMA device. They run in a guest
// with Soft-RoCE, where package rdmacore's tests (the directory above) take them: the build tag guest selects them.
package guest
