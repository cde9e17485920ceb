//! Raw requests and responses, so that cases can assert on status codes, `Status` bodies and headers.

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::check;

pub(super) const JSON: &str = "application/json";
pub(super) const JSON_PATCH: &str = "application/json-patch+json";
pub(super) const MERGE_PATCH: &str = "application/merge-patch+json";
pub(super) const STRATEGIC_PATCH: &str = "application/strategic-merge-patch+json";

/// How long a case waits for an expected watch event.
const WATCH_PATIENCE: Duration = Duration::from_secs(20);

/// How often a request is retried after 429.
const NOT_NOW: u32 = 20;

pub(super) struct Call<'a> {
    pub method: Method,
    pub path: &'a str,
    pub content_type: Option<&'a str>,
    pub accept: &'a str,
    pub body: Vec<u8>,
    /// Whether a 429 is the expected response, so that it is not retried.
    pub once: bool,
}

impl<'a> Call<'a> {
    pub fn new(method: Method, path: &'a str) -> Self {
        Self { method, path, content_type: None, accept: JSON, body: Vec::new(), once: false }
    }

    pub fn body(mut self, content_type: &'a str, body: &Value) -> Self {
        self.body = body.to_string().into_bytes();
        self.content_type = Some(content_type);
        self
    }

    pub fn text(mut self, content_type: &'a str, body: &str) -> Self {
        self.body = body.as_bytes().to_vec();
        self.content_type = Some(content_type);
        self
    }

    pub fn accept(mut self, accept: &'a str) -> Self {
        self.accept = accept;
        self
    }

    pub fn once(mut self) -> Self {
        self.once = true;
        self
    }

    pub async fn send(self, client: &kube::Client) -> Result<Reply> {
        let what = format!("{} {}", self.method, self.path);
        let response = self.open(client).await?;
        let status = response.status().as_u16();
        let bytes = response.into_body().collect_bytes().await.context(what.clone())?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Ok(Reply { what, status, body })
    }

    async fn open(self, client: &kube::Client) -> Result<http::Response<Body>> {
        let what = format!("{} {}", self.method, self.path);
        // Selectors contain spaces, which are not valid in a URI.
        let uri = self.path.replace(' ', "%20");
        let mut tries = 0;
        loop {
            let mut request = Request::builder().method(&self.method).uri(&uri).header("accept", self.accept);
            if let Some(content_type) = self.content_type {
                request = request.header("content-type", content_type);
            }
            let request = request.body(Body::from(self.body.clone())).context(what.clone())?;
            let response = client.send(request).await.context(what.clone())?;
            // A real server responds with 429 while it sets up storage for a custom kind.
            let not_now = response.status() == StatusCode::TOO_MANY_REQUESTS && !self.once;
            if !not_now || tries == NOT_NOW {
                return Ok(response);
            }
            tries += 1;
            sleep(Duration::from_secs(1)).await;
        }
    }
}

/// A response, with its request for failure messages.
#[derive(Debug)]
pub(super) struct Reply {
    pub what: String,
    pub status: u16,
    /// The JSON body; a body that is not JSON is stored as a string.
    pub body: Value,
}

impl Reply {
    /// Returns the body if the status code is `status`.
    pub fn ok(self, status: u16) -> Result<Value> {
        ensure!(
            self.status == status,
            "{}: wanted {status}, got {}: {}",
            self.what,
            self.status,
            brief(&self.body)
        );
        Ok(self.body)
    }

    /// Returns the body if it is a failure `Status` with this code and reason.
    pub fn fails(self, code: u16, reason: &str) -> Result<Value> {
        let Self { what, status, body } = self;
        ensure!(status == code, "{what}: wanted {code} {reason}, got {status}: {}", brief(&body));
        let whole = || format!("{what}: {}", brief(&body));
        check::is(&body, "/kind", "Status").with_context(whole)?;
        check::is(&body, "/apiVersion", "v1").with_context(whole)?;
        check::is(&body, "/status", "Failure").with_context(whole)?;
        check::is(&body, "/code", code).with_context(whole)?;
        if reason.is_empty() {
            check::absent(&body, "/reason").with_context(whole)?;
        } else {
            check::is(&body, "/reason", reason).with_context(whole)?;
        }
        ensure!(body["message"].as_str().is_some_and(|m| !m.is_empty()), "{}: no message", whole());
        Ok(body)
    }

    /// Returns the body of a 422 whose causes name exactly these fields.
    pub fn invalid(self, fields: &[&str]) -> Result<Value> {
        let body = self.fails(422, "Invalid")?;
        let mut got: Vec<&str> = check::list(&body, "/details/causes")?
            .iter()
            .filter_map(|cause| cause["field"].as_str())
            .collect();
        let mut want = fields.to_vec();
        got.sort_unstable();
        want.sort_unstable();
        got.dedup();
        ensure!(got == want, "wanted causes in {want:?}, got {got:?}: {}", brief(&body));
        Ok(body)
    }
}

pub(super) struct Watch {
    what: String,
    body: Body,
    buffer: Vec<u8>,
}

impl Watch {
    pub async fn open(client: &kube::Client, path: &str, accept: &str) -> Result<Self> {
        let response = Call::new(Method::GET, path).accept(accept).open(client).await?;
        let status = response.status().as_u16();
        if status != 200 {
            let bytes = response.into_body().collect_bytes().await?;
            bail!("watch {path}: {status}: {}", String::from_utf8_lossy(&bytes));
        }
        Ok(Self { what: format!("watch {path}"), body: response.into_body(), buffer: Vec::new() })
    }

    /// The next event, or `None` at the end of the watch.
    pub async fn next(&mut self) -> Result<Option<Value>> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Ok(Some(serde_json::from_slice(&line).with_context(|| self.what.clone())?));
            }
            let frame = timeout(WATCH_PATIENCE, self.body.frame())
                .await
                .map_err(|_| anyhow!("{}: silent for {WATCH_PATIENCE:?}", self.what))?;
            match frame {
                None => {
                    ensure!(self.buffer.is_empty(), "{}: ended within a line", self.what);
                    return Ok(None);
                }
                Some(frame) => {
                    if let Ok(data) = frame.with_context(|| self.what.clone())?.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
    }

    /// The object of the next event, which must have this type.
    pub async fn event(&mut self, kind: &str) -> Result<Value> {
        let Some(mut event) = self.next().await? else { bail!("{}: ended, wanted {kind}", self.what) };
        ensure!(event["type"] == kind, "{}: wanted {kind}, got {}", self.what, brief(&event));
        Ok(event["object"].take())
    }

    /// The next event, which must have this type and name.
    pub async fn about(&mut self, kind: &str, name: &str) -> Result<Value> {
        let object = self.event(kind).await?;
        check::is(&object, "/metadata/name", name).with_context(|| self.what.clone())?;
        Ok(object)
    }

    /// Skips to the first event of this type and name.
    pub async fn until(&mut self, kind: &str, name: &str) -> Result<Value> {
        loop {
            let Some(mut event) = self.next().await? else { bail!("{}: ended, wanted {kind}", self.what) };
            if event["type"] == kind && event["object"]["metadata"]["name"] == name {
                return Ok(event["object"].take());
            }
        }
    }
}

/// The body without managed fields, for failure messages.
pub(super) fn brief(body: &Value) -> String {
    let mut body = body.clone();
    if let Some(metadata) = body.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    let mut text = body.to_string();
    if text.len() > 900 {
        text = text.chars().take(900).collect::<String>() + "…";
    }
    text
}
