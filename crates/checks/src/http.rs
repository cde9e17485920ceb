//! The check `http`: a URL answers with the expected status.

use nodekeeper_core::checks::StatusRange;
use nodekeeper_core::report::{Outcome, reason};
use url::Url;

use crate::net::Net;
use crate::run::Finding;

pub(crate) async fn check(
    net: &impl Net,
    url: &Url,
    expected: StatusRange,
    ca_file: Option<&str>,
) -> Finding {
    let StatusRange { min, max } = expected;
    match net.get(url, ca_file).await {
        Ok(status) if (min..=max).contains(&i32::from(status)) => Finding::passed(format!("status {status}")),
        Ok(status) => Finding::new(
            Outcome::Failed,
            reason::UNEXPECTED_STATUS,
            format!("status {status}, where {min} to {max} is expected"),
        ),
        Err(error) => Finding::from_error(&error),
    }
}

/// Parses a URL; returns none for other schemes, credentials and fragments, and for what `url` would repair.
pub(crate) fn parse_url(text: &str) -> Option<Url> {
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"))?;
    let strict = text.chars().all(|c| c.is_ascii_graphic() && c != '\\') && !rest.starts_with('/');
    let url = Url::parse(text).ok()?;
    let plain = url.username().is_empty() && url.password().is_none() && url.fragment().is_none();
    (strict && plain && url.port() != Some(0)).then_some(url)
}

/// Returns a name or an IP address without brackets, and the port.
#[cfg(any(test, feature = "real"))]
pub(crate) fn host_and_port(url: &Url) -> (String, u16) {
    let host = match url.host() {
        Some(url::Host::Ipv6(address)) => address.to_string(),
        host => host.map(|host| host.to_string()).unwrap_or_default(),
    };
    (host, url.port_or_known_default().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::NetError;
    use crate::net::fake::{Fake, Reply};

    async fn status(reply: fn() -> Reply<u16>, expected: StatusRange) -> (Outcome, &'static str) {
        let url = parse_url("http://a.example/").expect("it is one");
        let finding = check(&Fake::new().on_get(move |_| reply()), &url, expected, None).await;
        (finding.outcome, finding.reason)
    }

    #[tokio::test(start_paused = true)]
    async fn the_status_has_to_be_in_the_range() {
        let usual = StatusRange::default();
        assert_eq!(status(|| Some(Ok(200)), usual).await, (Outcome::Passed, ""));
        assert_eq!(status(|| Some(Ok(301)), usual).await, (Outcome::Passed, ""));
        assert_eq!(status(|| Some(Ok(404)), usual).await, (Outcome::Failed, reason::UNEXPECTED_STATUS));
        assert_eq!(status(|| Some(Ok(401)), StatusRange { min: 401, max: 401 }).await, (Outcome::Passed, ""));
        assert_eq!(status(|| Some(Err(NetError::Refused)), usual).await, (Outcome::Failed, reason::REFUSED));
        let no_client = || Some(Err(NetError::NoClient("no such file".into())));
        assert_eq!(status(no_client, usual).await, (Outcome::Inconclusive, reason::NO_CLIENT));
    }

    #[test]
    fn urls_are_parsed() {
        for (text, shown, host, port) in [
            ("http://a.example", "http://a.example/", "a.example", 80),
            ("https://a.example/v2/?x=1", "https://a.example/v2/?x=1", "a.example", 443),
            ("https://a.example:80?x", "https://a.example:80/?x", "a.example", 80),
            ("https://[fd00::1]/", "https://[fd00::1]/", "fd00::1", 443),
            ("http://[fd00::1]:8080/", "http://[fd00::1]:8080/", "fd00::1", 8080),
        ] {
            let url = parse_url(text).expect(text);
            assert_eq!((url.as_str(), host_and_port(&url)), (shown, (host.to_owned(), port)));
        }
    }

    #[test]
    fn invalid_urls_are_refused() {
        for bad in [
            "",
            "a.example",
            "ftp://a",
            "http://",
            "http:///x",
            "http://u:p@a/",
            "http://a:0/",
            "http://a:99999/",
            "http://[x]/",
            "http://[fd00::1]x/",
            "http://a b/",
            "http://a\\x",
            "http://a/\r\nX: y",
            "http://a/#x",
            "HTTP://a/",
        ] {
            assert_eq!(parse_url(bad), None, "{bad}");
        }
    }
}
