"""A client that knows nothing of Nodekeeper: the official Python client, as any script uses it."""
import sys

from kubernetes import client, config, watch
from kubernetes.client.rest import ApiException

config.load_kube_config(sys.argv[1])
core, apps = client.CoreV1Api(), client.AppsV1Api()

names = [node.metadata.name for node in core.list_node().items]
print("nodes:", names)
assert "n1" in names

core.patch_node("n1", {"metadata": {"labels": {"python": "yes"}}})
assert core.read_node("n1").metadata.labels["python"] == "yes"
core.patch_node("n1", [{"op": "remove", "path": "/metadata/labels/python"}])
assert "python" not in core.read_node("n1").metadata.labels

taint = client.V1Taint(key="python", value="yes", effect="NoSchedule")
core.patch_node("n1", {"spec": {"taints": [taint]}})
assert [t.key for t in core.read_node("n1").spec.taints] == ["python"]
core.patch_node("n1", {"spec": {"taints": []}})

body = client.V1Pod(
    metadata=client.V1ObjectMeta(generate_name="python-"),
    spec=client.V1PodSpec(
        restart_policy="Never",
        containers=[client.V1Container(name="main", image="x:1", command=["exit", "3", "from python"])],
    ),
)
pod = core.create_namespaced_pod("default", body)
for event in watch.Watch().stream(
    core.list_namespaced_pod, "default", field_selector=f"metadata.name={pod.metadata.name}", timeout_seconds=30
):
    if event["object"].status.phase == "Failed":
        ended = event["object"].status.container_statuses[0].state.terminated
        assert (ended.exit_code, ended.message) == (3, "from python"), ended
        break
else:
    raise AssertionError("the pod never failed")
core.delete_namespaced_pod(pod.metadata.name, "default")

page = core.list_namespace(limit=1)
assert len(page.items) == 1 and page.metadata._continue
assert core.list_namespace(limit=1, _continue=page.metadata._continue).items[0].metadata.name != page.items[0].metadata.name

try:
    core.read_node("missing")
    raise AssertionError("a node that is not there was read")
except ApiException as error:
    assert error.status == 404 and '"reason":"NotFound"' in error.body, error.body

stale = core.read_node("n1")
core.patch_node("n1", {"metadata": {"annotations": {"python": "1"}}})
try:
    core.replace_node("n1", stale)
    raise AssertionError("a stale node was written")
except ApiException as error:
    assert error.status == 409, error.body

dynamic = client.CustomObjectsApi()
definition = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "things.python.example.com"},
    "spec": {
        "group": "python.example.com",
        "scope": "Cluster",
        "names": {"plural": "things", "kind": "Thing"},
        "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {
            "type": "object", "properties": {"spec": {"type": "object", "properties": {"size": {"type": "integer"}}}}}}}],
    },
}
client.ApiextensionsV1Api().create_custom_resource_definition(definition)
thing = {"apiVersion": "python.example.com/v1", "kind": "Thing", "metadata": {"name": "a"}, "spec": {"size": 3}}
dynamic.create_cluster_custom_object("python.example.com", "v1", "things", thing)
assert dynamic.get_cluster_custom_object("python.example.com", "v1", "things", "a")["spec"] == {"size": 3}
print("done")
