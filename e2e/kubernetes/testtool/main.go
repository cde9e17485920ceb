// What tests run in pods and beside nodes: one static binary with a mode for each use.
package main

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const usage = `usage: testtool MODE [ARGUMENT...]
  pause                stays until it is told to end
  exit CODE [TEXT...]  says TEXT and ends with CODE
  lookup NAME          resolves NAME, says its addresses; code 1 if that fails within 5 s
  forward ADDRESS      hands each connection to the listening socket that is its stdin on to ADDRESS
  registry FOLDER ADDRESS
                       serves the images of FOLDER, OCI layouts in tar files, to clients that pull`

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
	case mode == "registry" && len(rest) == 2:
		fail(http.ListenAndServe(rest[1], registry(rest[0])))
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

type manifest struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Annotations map[string]string `json:"annotations"`
}

// The part of the registry protocol that a pull needs.
func registry(folder string) http.Handler {
	routes := http.NewServeMux()
	routes.HandleFunc("GET /v2/{$}", func(http.ResponseWriter, *http.Request) {})
	routes.HandleFunc("GET /v2/{image}/manifests/{tag}", func(answer http.ResponseWriter, request *http.Request) {
		image, tag := request.PathValue("image"), request.PathValue("tag")
		for _, layout := range layouts(folder) {
			var index struct {
				Manifests []manifest `json:"manifests"`
			}
			text, err := file(layout, "index.json")
			if err != nil || json.Unmarshal(text, &index) != nil {
				continue
			}
			for _, found := range index.Manifests {
				name := found.Annotations["io.containerd.image.name"]
				if found.Digest == tag || strings.HasSuffix(name, "/"+image+":"+tag) {
					serve(answer, request, []string{layout}, found.Digest, found.MediaType)
					return
				}
			}
		}
		http.NotFound(answer, request)
	})
	routes.HandleFunc("GET /v2/{image}/blobs/{digest}", func(answer http.ResponseWriter, request *http.Request) {
		serve(answer, request, layouts(folder), request.PathValue("digest"), "application/octet-stream")
	})
	return routes
}

func layouts(folder string) []string {
	found, _ := filepath.Glob(filepath.Join(folder, "*.tar"))
	return found
}

// Answers with the blob of the first layout that has it.
func serve(answer http.ResponseWriter, request *http.Request, layouts []string, digest, kind string) {
	for _, layout := range layouts {
		blob, err := file(layout, "blobs/"+strings.Replace(digest, ":", "/", 1))
		if err != nil {
			continue
		}
		answer.Header().Set("Content-Type", kind)
		answer.Header().Set("Docker-Content-Digest", digest)
		answer.Header().Set("Content-Length", strconv.Itoa(len(blob)))
		_, _ = answer.Write(blob)
		return
	}
	http.NotFound(answer, request)
}

// The content of a file in a tar file.
func file(archive, name string) ([]byte, error) {
	opened, err := os.Open(archive)
	if err != nil {
		return nil, err
	}
	defer opened.Close()
	for entries := tar.NewReader(opened); ; {
		entry, err := entries.Next()
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s has no %s", archive, name), err)
		}
		if entry.Name == name {
			return io.ReadAll(entries)
		}
	}
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
