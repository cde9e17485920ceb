//! A client that records every 403.

use std::sync::Arc;

use anyhow::Result;
use http::{Request, StatusCode};
use kube::client::Body;
use kube::{Client, Config};
use parking_lot::Mutex;
use tower::service_fn;

#[derive(Clone, Default)]
pub struct Refusals(Arc<Mutex<Vec<String>>>);

impl Refusals {
    pub fn client(&self, config: Config) -> Result<Client> {
        let (inner, memory) = (Client::try_from(config)?, self.clone());
        let service = service_fn(move |request: Request<Body>| {
            let (inner, memory) = (inner.clone(), memory.clone());
            async move {
                let asked = format!("{} {}", request.method(), request.uri());
                let answer = inner.send(request).await?;
                if answer.status() == StatusCode::FORBIDDEN {
                    memory.0.lock().push(asked);
                }
                Ok::<_, kube::Error>(answer)
            }
        });
        Ok(Client::new(service, "default"))
    }

    /// Each as method and path.
    pub fn list(&self) -> Vec<String> {
        self.0.lock().clone()
    }
}
