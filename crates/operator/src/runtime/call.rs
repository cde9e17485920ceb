//! The one function through which every request to the API server goes: it has a timeout, and its errors have classes.

use std::time::Duration;

use kube::Error;
use kube::core::Status;
use tokio::time::timeout;

/// A write ends before another replica can take the lease: the lease lasts 5 s longer than its holder writes.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(4);
pub const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a request has no successful answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The API server answered with an error.
    #[error("{}", .0.message)]
    Status(Box<Status>),
    /// The connection failed, so that a write may or may not have been made.
    #[error("{0}")]
    Transport(String),
    #[error("no answer within {} s", .0.as_secs())]
    Timeout(Duration),
}

impl CallError {
    /// The HTTP status code of the answer, if there was one.
    #[must_use]
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Status(status) => Some(status.code),
            Self::Transport(_) | Self::Timeout(_) => None,
        }
    }

    /// Whether the API server does not serve the kind, or has no such object.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }
}

/// Sends a request and waits for its answer for at most `limit`.
pub async fn call<T>(
    limit: Duration,
    request: impl Future<Output = kube::Result<T>>,
) -> Result<T, CallError> {
    match timeout(limit, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(Error::Api(status))) => Err(CallError::Status(status)),
        Ok(Err(error)) => Err(CallError::Transport(error.to_string())),
        Err(_) => Err(CallError::Timeout(limit)),
    }
}
