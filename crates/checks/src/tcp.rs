//! `tcp`: a TCP connection can be opened.

use crate::net::Net;
use crate::run::Finding;

pub(crate) async fn check(net: &impl Net, host: &str, port: u16) -> Finding {
    match net.connect(host, port).await {
        Ok(()) => Finding::passed(String::new()),
        Err(error) => Finding::from_error(&error),
    }
}
