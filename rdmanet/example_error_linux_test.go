package rdmanet_test

import (
	"errors"
	"fmt"
	"log"
	"syscall"

	"github.com/go-rdma/rdma/rdmanet"
)

// closedAddr is one that nobody listens on any more.
func closedAddr() (string, error) {
	l, err := rdmanet.Listen("rdma", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// Errors are compared with errno, as those of package net; an *Error has what is to be said to a person.
func ExampleError() {
	addr, err := closedAddr()
	if err != nil {
		log.Print(err)
		return
	}
	_, err = rdmanet.Dial("rdma", addr)
	fmt.Println(errors.Is(err, syscall.ECONNREFUSED))
	var e *rdmanet.Error
	if errors.As(err, &e) {
		fmt.Println(e.Timeout(), e.Hint != "")
	}
	// Output:
	// true
	// false true
}

// A program that tries again does so for what the network may mend, and not for a host that lacks a device.
func ExamplePhase() {
	again := func(err error) bool {
		var e *rdmanet.Error
		if !errors.As(err, &e) {
			return false
		}
		switch e.Phase {
		case rdmanet.PhaseConnect, rdmanet.PhaseExchange, rdmanet.PhaseTransfer:
			return true
		}
		return e.Temporary()
	}
	addr, err := closedAddr()
	if err != nil {
		log.Print(err)
		return
	}
	_, err = rdmanet.Dial("rdma", addr)
	fmt.Println(again(err))
	_, err = (&rdmanet.Dialer{Device: "no_such_device"}).Dial("rdma", addr)
	fmt.Println(again(err))
	// Output:
	// true
	// false
}

// A peer on RDMA whose program refuses, as one of C's may, says why by a number of the specification, and may say more.
func ExampleRejectError() {
	c, err := rdmanet.Dial("rdma", "server:7471")
	var reject *rdmanet.RejectError
	switch {
	case err == nil:
		c.Close()
	case errors.As(err, &reject) && reject.Reason == 28:
		log.Printf("the program there refuses: %q", reject.PrivateData)
	default:
		log.Print(err)
	}
}
