//! A client that records the rights that its requests use, and every 403.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::Result;
use http::{Method, Request, StatusCode};
use kube::client::Body;
use kube::{Client, Config};
use parking_lot::Mutex;
use tower::service_fn;

#[derive(Clone, Default)]
pub struct Refusals(Arc<Mutex<Recorded>>);

#[derive(Default)]
struct Recorded {
    refused: Vec<String>,
    used: BTreeSet<String>,
}

impl Refusals {
    pub fn client(&self, config: Config) -> Result<Client> {
        let (inner, memory) = (Client::try_from(config)?, self.clone());
        let service = service_fn(move |request: Request<Body>| {
            let (inner, memory) = (inner.clone(), memory.clone());
            async move {
                let asked = format!("{} {}", request.method(), request.uri());
                memory.0.lock().used.extend(right(&request));
                let answer = inner.send(request).await?;
                if answer.status() == StatusCode::FORBIDDEN {
                    memory.0.lock().refused.push(asked);
                }
                Ok::<_, kube::Error>(answer)
            }
        });
        Ok(Client::new(service, "default"))
    }

    /// Each as method and path.
    pub fn list(&self) -> Vec<String> {
        self.0.lock().refused.clone()
    }

    /// The rights of these rules that no request used, each as `verb group/resource`.
    pub fn unused(&self, rules: &[&str]) -> Vec<String> {
        let used = &self.0.lock().used;
        let mut rights = Vec::new();
        for rule in rules {
            let mut words = rule.split(' ');
            let (resources, verbs) = (words.next().unwrap_or_default(), words.nth(1).unwrap_or_default());
            let (group, resources) = resources.split_once('/').unwrap_or_default();
            for resource in resources.split(',') {
                rights.extend(verbs.split(',').map(|verb| format!("{verb} {group}/{resource}")));
            }
        }
        rights.retain(|right| !used.contains(right));
        rights
    }
}

/// The right that a request needs.
fn right(request: &Request<Body>) -> Option<String> {
    let path: Vec<&str> = request.uri().path().split('/').filter(|part| !part.is_empty()).collect();
    let (group, rest) = match &path[..] {
        ["api", "v1", rest @ ..] => ("", rest),
        ["apis", group, _, rest @ ..] => (*group, rest),
        _ => return None,
    };
    let rest = match rest {
        ["namespaces", _, rest @ ..] if !rest.is_empty() => rest,
        rest => rest,
    };
    let (resource, is_named) = match rest {
        [resource] => ((*resource).to_owned(), false),
        [resource, _] => ((*resource).to_owned(), true),
        [resource, _, part] => (format!("{resource}/{part}"), true),
        _ => return None,
    };
    let watches = request.uri().query().is_some_and(|query| query.contains("watch=true"));
    let verb = match *request.method() {
        Method::GET if watches => "watch",
        Method::GET if is_named => "get",
        Method::GET => "list",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => return None,
    };
    Some(format!("{verb} {group}/{resource}"))
}
