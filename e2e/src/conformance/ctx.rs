//! The context of a case: a client, its own namespace, unique names, and a list of objects to remove.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use http::Method;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep, timeout};

use super::http::{Call, JSON, JSON_PATCH, MERGE_PATCH, Reply, STRATEGIC_PATCH, Watch};
use super::objects;

/// How long a controller may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(55);
const POLL: Duration = Duration::from_millis(100);

/// State that the cases of one run share.
pub(super) struct Run {
    pub client: kube::Client,
    /// Unique among runs on the same server.
    pub id: String,
    /// The namespaced kind with a schema and a status subresource, created on first use.
    widgets: OnceCell<()>,
    /// The cluster-scoped kind without either, created on first use.
    gadgets: OnceCell<()>,
    /// Namespaces to remove at the end: their removal would delay cases that wait for controllers.
    namespaces: Mutex<Vec<String>>,
}

impl Run {
    pub fn new(client: kube::Client) -> Self {
        let millis = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or_default();
        Self {
            client,
            id: format!("cf{}", base36(millis)),
            widgets: OnceCell::new(),
            gadgets: OnceCell::new(),
            namespaces: Mutex::default(),
        }
    }

    /// The API group of the shared custom kinds.
    pub fn group(&self) -> String {
        format!("{}.example.com", self.id)
    }

    async fn define(&self, crd: Value) -> Result<()> {
        let client = &self.client;
        let name = crd["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        Call::new(Method::POST, CRDS).body(JSON, &crd).send(client).await?.ok(201)?;
        established(client, &name).await
    }

    /// Removes shared and leftover objects without waiting.
    pub async fn clean_up(&self) {
        let namespaces = std::mem::take(&mut *self.namespaces.lock());
        for name in namespaces {
            let path = format!("/api/v1/namespaces/{name}");
            drop(Call::new(Method::DELETE, &path).send(&self.client).await);
        }
        for (made, plural) in [(&self.widgets, "widgets"), (&self.gadgets, "gadgets")] {
            if made.initialized() {
                let path = format!("{CRDS}/{plural}.{}", self.group());
                drop(Call::new(Method::DELETE, &path).send(&self.client).await);
            }
        }
    }
}

pub(super) const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Waits until a CRD is established.
pub(super) async fn established(client: &kube::Client, name: &str) -> Result<()> {
    eventually(PATIENCE, || async {
        let path = format!("{CRDS}/{name}");
        let crd = Call::new(Method::GET, &path).send(client).await?.ok(200)?;
        let ready = super::check::condition(&crd, "Established").is_some_and(|c| c["status"] == "True");
        ensure!(ready, "{name} is not established");
        let at = |pointer: &str| crd.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let resource = format!(
            "/apis/{}/{}/{}?limit=1",
            at("/spec/group"),
            at("/spec/versions/0/name"),
            at("/spec/names/plural")
        );
        Call::new(Method::GET, &resource).send(client).await?.ok(200).map(drop)
    })
    .await
}

pub(super) struct Ctx {
    pub run: Arc<Run>,
    /// Unique among cases and runs; a DNS label.
    pub id: String,
    /// The namespace, created with the first request that needs it.
    namespace: OnceCell<()>,
    /// Paths of created objects, oldest first.
    made: Mutex<Vec<String>>,
}

impl Ctx {
    pub fn new(run: Arc<Run>, number: usize) -> Self {
        let id = format!("{}-{number}", run.id);
        Self { run, id, namespace: OnceCell::new(), made: Mutex::default() }
    }

    pub fn client(&self) -> &kube::Client {
        &self.run.client
    }

    /// The case's own namespace.
    pub fn ns(&self) -> &str {
        &self.id
    }

    /// A unique cluster-scoped name.
    pub fn name(&self, suffix: &str) -> String {
        format!("{}-{suffix}", self.id)
    }

    /// The path of something in the case's namespace: `v1/configmaps/a`, `apps/v1/deployments?limit=1`.
    pub fn path(&self, resource: &str) -> String {
        let (prefix, version, rest) = match resource.split_once('/') {
            Some(("v1", rest)) => ("api".to_owned(), "v1", rest),
            Some((group, rest)) => {
                let (version, rest) = rest.split_once('/').unwrap_or((rest, ""));
                (format!("apis/{group}"), version, rest)
            }
            None => ("api".to_owned(), "v1", resource),
        };
        format!("/{prefix}/{version}/namespaces/{}/{rest}", self.ns())
    }

    /// Sends a request and records what it creates.
    pub async fn send(&self, call: Call<'_>) -> Result<Reply> {
        if call.path.contains(&format!("/namespaces/{}/", self.ns())) {
            self.namespace.get_or_try_init(|| self.make_namespace()).await?;
        }
        let (method, path) = (call.method.clone(), call.path.to_owned());
        let reply = call.send(self.client()).await?;
        if method == Method::POST && reply.status == 201 && !path.contains("dryRun") {
            let base = path.split('?').next().unwrap_or_default();
            if let Some(name) = reply.body.pointer("/metadata/name").and_then(Value::as_str) {
                self.note(format!("{base}/{name}"));
            }
        }
        Ok(reply)
    }

    /// Adds an object to the clean-up.
    pub fn note(&self, path: String) {
        self.made.lock().push(path);
    }

    async fn make_namespace(&self) -> Result<()> {
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.ns()}});
        let call = Call::new(Method::POST, "/api/v1/namespaces").body(JSON, &body);
        call.send(self.client()).await?.ok(201)?;
        self.run.namespaces.lock().push(self.ns().to_owned());
        Ok(())
    }

    pub async fn get(&self, path: &str) -> Result<Reply> {
        self.send(Call::new(Method::GET, path)).await
    }

    pub async fn get_as(&self, path: &str, accept: &str) -> Result<Reply> {
        self.send(Call::new(Method::GET, path).accept(accept)).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Result<Reply> {
        self.send(Call::new(Method::POST, path).body(JSON, body)).await
    }

    pub async fn put(&self, path: &str, body: &Value) -> Result<Reply> {
        self.send(Call::new(Method::PUT, path).body(JSON, body)).await
    }

    pub async fn delete(&self, path: &str) -> Result<Reply> {
        self.send(Call::new(Method::DELETE, path)).await
    }

    /// Deletes with `DeleteOptions`, whose kind is added.
    pub async fn delete_with(&self, path: &str, mut options: Value) -> Result<Reply> {
        options["kind"] = "DeleteOptions".into();
        options["apiVersion"] = "v1".into();
        self.send(Call::new(Method::DELETE, path).body(JSON, &options)).await
    }

    pub async fn json_patch(&self, path: &str, operations: Value) -> Result<Reply> {
        self.send(Call::new(Method::PATCH, path).body(JSON_PATCH, &operations)).await
    }

    pub async fn merge(&self, path: &str, patch: Value) -> Result<Reply> {
        self.send(Call::new(Method::PATCH, path).body(MERGE_PATCH, &patch)).await
    }

    pub async fn strategic(&self, path: &str, patch: Value) -> Result<Reply> {
        self.send(Call::new(Method::PATCH, path).body(STRATEGIC_PATCH, &patch)).await
    }

    pub async fn watch(&self, path: &str) -> Result<Watch> {
        if path.contains(&format!("/namespaces/{}/", self.ns())) {
            self.namespace.get_or_try_init(|| self.make_namespace()).await?;
        }
        Watch::open(self.client(), path, JSON).await
    }

    pub async fn create(&self, path: &str, body: Value) -> Result<Value> {
        self.post(path, &body).await?.ok(201)
    }

    pub async fn read(&self, path: &str) -> Result<Value> {
        self.get(path).await?.ok(200)
    }

    /// Creates a `ConfigMap` with `data: {a: "1"}` and returns its path and the server's response.
    pub async fn config_map(&self, name: &str) -> Result<(String, Value)> {
        let made = self.create(&self.path("v1/configmaps"), objects::config_map(name)).await?;
        Ok((self.path(&format!("v1/configmaps/{name}")), made))
    }

    /// Creates a pod that no scheduler handles and returns its path and the server's response.
    pub async fn pod(&self, name: &str) -> Result<(String, Value)> {
        self.pod_of(objects::pod(name)).await
    }

    /// Creates this pod as soon as its namespace accepts pods.
    pub async fn pod_of(&self, pod: Value) -> Result<(String, Value)> {
        self.service_account().await?;
        let made = self.create(&self.path("v1/pods"), pod).await?;
        let name = super::check::text(&made, "/metadata/name")?;
        Ok((self.path(&format!("v1/pods/{name}")), made))
    }

    /// Waits for the namespace's default `ServiceAccount`, without which no pod is admitted.
    pub async fn service_account(&self) -> Result<()> {
        let path = self.path("v1/serviceaccounts/default");
        eventually(PATIENCE, || async { self.read(&path).await.map(drop) }).await
    }

    /// Creates a Node without a kubelet and returns its path and the server's response.
    pub async fn node(&self, suffix: &str) -> Result<(String, Value)> {
        let name = self.name(suffix);
        let made = self.create("/api/v1/nodes", objects::node(&name, &self.id)).await?;
        Ok((format!("/api/v1/nodes/{name}"), made))
    }

    /// The path of the shared namespaced custom kind, in the case's namespace.
    pub async fn widgets(&self) -> Result<String> {
        let group = self.run.group();
        self.run.widgets.get_or_try_init(|| self.run.define(objects::widget_crd(&group))).await?;
        Ok(self.path(&format!("{group}/v1/widgets")))
    }

    pub fn widget(&self, name: &str) -> Value {
        objects::widget(&self.run.group(), name)
    }

    /// Creates a widget and returns its path and the server's response.
    pub async fn make_widget(&self, name: &str) -> Result<(String, Value)> {
        let path = self.widgets().await?;
        let made = self.create(&path, self.widget(name)).await?;
        Ok((format!("{path}/{name}"), made))
    }

    /// The path of the shared cluster-scoped custom kind.
    pub async fn gadgets(&self) -> Result<String> {
        let group = self.run.group();
        self.run.gadgets.get_or_try_init(|| self.run.define(objects::gadget_crd(&group))).await?;
        Ok(format!("/apis/{group}/v1/gadgets"))
    }

    pub fn gadget(&self, name: &str) -> Value {
        json!({"apiVersion": format!("{}/v1", self.run.group()), "kind": "Gadget", "metadata": {"name": name}})
    }

    /// Polls until the object satisfies the predicate, and returns it.
    pub async fn until(&self, path: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        eventually(PATIENCE, || async {
            let object = self.read(path).await?;
            ensure!(wanted(&object), "{path} is not yet as wanted: {}", super::http::brief(&object));
            Ok(object)
        })
        .await
    }

    /// Waits until the object is gone.
    pub async fn gone(&self, path: &str) -> Result<()> {
        eventually(PATIENCE, || async {
            let reply = self.get(path).await?;
            ensure!(reply.status == 404, "{path} is still there: {}", super::http::brief(&reply.body));
            Ok(())
        })
        .await
    }

    /// Removes the objects of the case, newest first, including their finalizers. Errors are ignored: most objects
    /// are gone.
    pub async fn clean_up(&self) {
        let made = std::mem::take(&mut *self.made.lock());
        let client = self.client();
        let work = async {
            for path in made.iter().rev() {
                let reply = Call::new(Method::GET, path).send(client).await;
                let Ok(Reply { status: 200, body, .. }) = reply else { continue };
                let held =
                    body.pointer("/metadata/finalizers").is_some() && !path.starts_with(super::ctx::CRDS);
                if held && body["kind"] != "Namespace" {
                    let free = json!({"metadata": {"finalizers": null}});
                    drop(Call::new(Method::PATCH, path).body(MERGE_PATCH, &free).send(client).await);
                }
                // Deleting the namespace removes its content unless a finalizer holds it; pods would wait for a
                // kubelet.
                if !path.contains(&format!("/namespaces/{}/", self.ns())) || body["kind"] == "Pod" {
                    let now = json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0});
                    drop(Call::new(Method::DELETE, path).body(JSON, &now).send(client).await);
                }
            }
        };
        drop(timeout(PATIENCE, work).await);
    }
}

/// Retries until success; returns the last error after `patience`.
pub(super) async fn eventually<T, F: Future<Output = Result<T>>>(
    patience: Duration,
    attempt: impl Fn() -> F,
) -> Result<T> {
    let start = Instant::now();
    loop {
        match attempt().await {
            Ok(value) => return Ok(value),
            Err(error) if start.elapsed() > patience => {
                return Err(error.context(format!("still so after {patience:?}")));
            }
            Err(_) => sleep(POLL).await,
        }
    }
}

fn base36(mut number: u64) -> String {
    let mut digits = Vec::new();
    while number > 0 {
        digits
            .push(b"0123456789abcdefghijklmnopqrstuvwxyz"[usize::try_from(number % 36).unwrap_or_default()]);
        number /= 36;
    }
    digits.reverse();
    String::from_utf8(digits).unwrap_or_default()
}
