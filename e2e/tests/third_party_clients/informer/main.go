// A client that knows nothing of Nodekeeper: client-go's informers and typed client, as any Go controller uses them.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

func check(err error) {
	if err != nil {
		fmt.Println("FAILED:", err)
		os.Exit(1)
	}
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	config, err := clientcmd.BuildConfigFromFlags("", os.Args[1])
	check(err)
	// Reads work as they are. Writes are protobuf by default, which the embedded cluster does not read: it says so.
	_, err = kubernetes.NewForConfigOrDie(config).CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{})
	if !apierrors.IsUnsupportedMediaType(err) {
		check(fmt.Errorf("a protobuf body was answered with %v", err))
	}
	config.ContentType = runtime.ContentTypeJSON
	client := kubernetes.NewForConfigOrDie(config)
	events := make(chan string, 100)
	factory := informers.NewSharedInformerFactory(client, 0)
	informer := factory.Core().V1().Nodes().Informer()
	tell := func(what string) func(any) {
		return func(object any) { events <- what + " " + object.(*corev1.Node).Name }
	}
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: tell("added"),
		UpdateFunc: func(_, object any) {
			events <- fmt.Sprintf("updated %s %s", object.(*corev1.Node).Name, object.(*corev1.Node).Labels["client"])
		},
		DeleteFunc: tell("deleted"),
	})
	check(err)
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		check(fmt.Errorf("the cache never synced"))
	}
	fmt.Println("synced with", len(informer.GetStore().List()), "nodes")

	nodes := client.CoreV1().Nodes()
	made, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "client"}}, metav1.CreateOptions{})
	check(err)
	patch := []byte(`{"metadata":{"labels":{"client":"yes"}}}`)
	_, err = nodes.Patch(ctx, "client", types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	check(err)
	check(nodes.Delete(ctx, "client", metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(made.UID))}))
	for _, wanted := range []string{"added client", "updated client yes", "deleted client"} {
		for seen := ""; seen != wanted; {
			select {
			case seen = <-events:
			case <-ctx.Done():
				check(fmt.Errorf("never seen: %s", wanted))
			}
		}
		fmt.Println(wanted)
	}
	fmt.Println("done")
}
