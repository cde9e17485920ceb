//! Parses the URLs of http checks.

use std::fmt;
use std::net::IpAddr;

use crate::plan::join;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    pub tls: bool,
    /// A name or an IP address without brackets.
    pub host: String,
    pub port: u16,
    /// Path and query, starting with a slash.
    pub path: String,
}

impl Url {
    /// Parses a URL; returns none for other schemes, credentials and fragments.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        if text.contains(|c: char| !c.is_ascii_graphic() || c == '#') {
            return None;
        }
        let (scheme, rest) = text.split_once("://")?;
        let tls = match scheme {
            "http" => false,
            "https" => true,
            _ => return None,
        };
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let default = if tls { 443 } else { 80 };
        let (host, port) = read_authority(authority, default)?;
        let slash = if path.starts_with('/') { "" } else { "/" };
        Some(Self { tls, host, port, path: format!("{slash}{path}") })
    }

    /// Returns `host:port` for the `Host` header.
    #[must_use]
    pub fn authority(&self) -> String {
        join(&self.host, self.port)
    }
}

impl fmt::Display for Url {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        let default = if self.tls { 443 } else { 80 };
        let whole = self.authority();
        let place =
            if self.port == default { whole.trim_end_matches(&format!(":{default}")) } else { &whole };
        write!(out, "{scheme}://{place}{}", self.path)
    }
}

fn read_authority(authority: &str, default: u16) -> Option<(String, u16)> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (inner, after) = rest.split_once(']')?;
            inner.parse::<IpAddr>().ok()?;
            (inner, after.strip_prefix(':').or_else(|| after.is_empty().then_some(""))?)
        }
        None => authority.split_once(':').unwrap_or((authority, "")),
    };
    let port = if port.is_empty() { default } else { port.parse().ok().filter(|port| *port != 0)? };
    let is_host = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
    (!host.is_empty() && host.len() <= 253 && host.chars().all(is_host)).then(|| (host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<(bool, String, u16, String)> {
        Url::read(text).map(|url| (url.tls, url.host, url.port, url.path))
    }

    #[test]
    fn urls_are_parsed() {
        let url = |tls, host: &str, port, path: &str| Some((tls, host.to_owned(), port, path.to_owned()));
        assert_eq!(read("http://a.example"), url(false, "a.example", 80, "/"));
        assert_eq!(read("https://a.example/v2/?x=1"), url(true, "a.example", 443, "/v2/?x=1"));
        assert_eq!(read("https://a.example?x"), url(true, "a.example", 443, "/?x"));
        assert_eq!(read("http://[fd00::1]:8080/"), url(false, "fd00::1", 8080, "/"));
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
            "http://a/\r\nX: y",
            "http://a/#x",
            "HTTP://a/",
        ] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_url_is_displayed_as_given() {
        for text in
            ["http://a.example/", "https://a.example:80/x", "https://[fd00::1]/", "http://[fd00::1]:443/"]
        {
            assert_eq!(Url::read(text).map(|url| url.to_string()).as_deref(), Some(text));
        }
    }
}
