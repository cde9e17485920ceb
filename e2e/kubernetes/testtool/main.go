// What tests run in pods and beside nodes: one static binary with a mode for each use.
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const usage = `usage: testtool MODE [ARGUMENT...]
  pause                stays until it is told to end
  exit CODE [TEXT...]  says TEXT and ends with CODE
  lookup NAME          resolves NAME, says its addresses; code 1 if that fails within 5 s
  forward ADDRESS      hands each connection to the listening socket that is its stdin on to ADDRESS`

func main() {
	arguments := os.Args[1:]
	if len(arguments) == 0 {
		arguments = []string{"help"}
	}
	switch mode, rest := arguments[0], arguments[1:]; {
	case mode == "pause":
		pause()
	case mode == "exit" && len(rest) > 0:
		code, err := strconv.Atoi(rest[0])
		if err != nil {
			fail(err)
		}
		say(strings.Join(rest[1:], " "))
		os.Exit(code)
	case mode == "lookup" && len(rest) == 1:
		lookup(rest[0])
	case mode == "forward" && len(rest) == 1:
		fail(forward(rest[0]))
	default:
		fmt.Fprintln(os.Stderr, usage)
		os.Exit(2)
	}
}

// As the first process of a pod it also waits for orphans, so that none stays a zombie.
func pause() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for received := range signals {
		if received != syscall.SIGCHLD {
			return
		}
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
}

func lookup(name string) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	addresses, err := net.DefaultResolver.LookupHost(ctx, name)
	if err != nil {
		say(err.Error())
		os.Exit(1)
	}
	say(strings.Join(addresses, " "))
}

// A socket stays in the network namespace it was made in, so this joins two of them without a route between them.
func forward(address string) error {
	listener, err := net.FileListener(os.Stdin)
	if err != nil {
		return fmt.Errorf("stdin has to be a listening socket: %w", err)
	}
	for {
		client, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer client.Close()
			server, err := net.DialTimeout("tcp", address, 5*time.Second)
			if err != nil {
				return
			}
			defer server.Close()
			done := make(chan struct{})
			go func() {
				copyAndClose(server, client)
				close(done)
			}()
			copyAndClose(client, server)
			<-done
		}()
	}
}

// The end of one direction is passed on and is not the end of the other: what is under way still arrives.
func copyAndClose(to, from net.Conn) {
	_, err := io.Copy(to, from)
	if tcp, ok := to.(*net.TCPConn); ok && err == nil {
		_ = tcp.CloseWrite()
		return
	}
	_ = to.Close()
	_ = from.Close()
}

// On stdout for `kubectl logs`, and as the termination message where the kubelet takes one.
func say(text string) {
	fmt.Println(text)
	if log, err := os.OpenFile("/dev/termination-log", os.O_WRONLY, 0); err == nil {
		_, _ = log.WriteString(text)
		_ = log.Close()
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "testtool:", err)
	os.Exit(1)
}
