//! The way to a real API server.

use std::time::Duration;

use kube::{Client, Config};

/// A client that never hides an answer and never waits forever. Each call has its own timeout besides.
///
/// # Errors
/// Where the configuration names certificates or tokens that cannot be read.
pub fn client(mut config: Config) -> kube::Result<Client> {
    // One call that is retried inside the client for minutes would hold a node up; the queue retries.
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(5));
    // A little longer than any watch lasts.
    config.read_timeout = Some(Duration::from_mins(5));
    config.reset_reader_on_write = true;
    Client::try_from(config)
}
