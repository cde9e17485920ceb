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
    match format {
        Format::OpenMetrics => {
            let mut open = String::new();
            text::encode_registry(&mut open, registry)?;
            text::encode_eof(&mut open)?;
            Ok(open)
        }
        Format::Prometheus => {
            let mut prometheus = PrometheusText::default();
            text::encode_registry(&mut prometheus, registry)?;
            Ok(prometheus.out)
        }
    }
}

/// Turns `OpenMetrics` into Prometheus text line by line: with series for each node there is no room for both. In
/// Prometheus text, HELP and TYPE of a counter carry its full name, with `_total`.
#[derive(Default)]
struct PrometheusText {
    out: String,
    /// The line that is being written.
    line: String,
    /// The name and the text of the last HELP, until its TYPE is known.
    help: Option<(String, String)>,
}

impl PrometheusText {
    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("HELP"), Some(name), text) => {
                self.help = Some((name.to_owned(), text.unwrap_or_default().to_owned()));
            }
            (Some("#"), Some("TYPE"), Some(name), Some(kind)) => {
                let suffix = if kind == "counter" { "_total" } else { "" };
                if let Some((_, text)) = self.help.take().filter(|(helped, _)| helped == name) {
                    self.out.extend(["# HELP ", name, suffix, " ", &text, "\n"]);
                }
                self.out.extend(["# TYPE ", name, suffix, " ", kind, "\n"]);
            }
            _ => self.out.extend([line.as_str(), "\n"]),
        }
        // Its memory is used again.
        self.line = line;
        self.line.clear();
    }
}

impl fmt::Write for PrometheusText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut parts = text.split('\n');
        self.line.extend(parts.next());
        for part in parts {
            self.end_line();
            self.line.push_str(part);
        }
        Ok(())
    }
}
