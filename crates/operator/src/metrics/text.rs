//! The text formats: `OpenMetrics`, and the Prometheus text format.

use std::fmt;

use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus text 0.0.4.
    Prometheus,
    /// `OpenMetrics` 1.0.0.
    OpenMetrics,
}

impl Format {
    /// Chooses the format from an `Accept` header; without `OpenMetrics` in it, Prometheus text.
    #[must_use]
    pub fn from_accept(accept: &str) -> Self {
        let refused = |part: &str| part.split(';').any(|word| matches!(word.trim(), "q=0" | "q=0.0"));
        let open = |part: &&str| part.trim_start().starts_with("application/openmetrics-text");
        match accept.split(',').find(open) {
            Some(part) if !refused(part) => Self::OpenMetrics,
            _ => Self::Prometheus,
        }
    }

    /// Returns the value of the `Content-Type` header.
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

pub fn render(registry: &Registry, format: Format) -> Result<String, fmt::Error> {
    let mut open = String::new();
    text::encode_registry(&mut open, registry)?;
    match format {
        Format::OpenMetrics => {
            text::encode_eof(&mut open)?;
            Ok(open)
        }
        Format::Prometheus => Ok(to_prometheus(&open)),
    }
}

/// In Prometheus text, HELP and TYPE of a counter carry its full name, with `_total`.
fn to_prometheus(open: &str) -> String {
    let mut out = String::with_capacity(open.len());
    let mut help: Option<(&str, &str)> = None;
    for line in open.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("HELP"), Some(name), text) => help = Some((name, text.unwrap_or_default())),
            (Some("#"), Some("TYPE"), Some(name), Some(kind)) => {
                let suffix = if kind == "counter" { "_total" } else { "" };
                if let Some((_, text)) = help.take().filter(|(helped, _)| *helped == name) {
                    out.extend(["# HELP ", name, suffix, " ", text, "\n"]);
                }
                out.extend(["# TYPE ", name, suffix, " ", kind, "\n"]);
            }
            _ => out.extend([line, "\n"]),
        }
    }
    out
}
