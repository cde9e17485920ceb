//! Logging to standard error.
//!
//! JSON lines have the keys of zap and of kube-node-ready: `level`, `timestamp`, `msg`, then the fields. The JSON
//! formatter of `tracing-subscriber` has other keys, and upper-case levels.

#![expect(clippy::disallowed_methods, reason = "log lines carry the real time")]

use std::fmt::{self, Write as _};
use std::io::IsTerminal as _;

use jiff::{Timestamp, Unit};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One JSON object per line.
    Json,
    /// Human-readable text.
    Console,
}

/// Installs the logger of the process.
///
/// # Errors
/// If the level is neither a level nor a filter.
pub fn init(format: Format, level: &str) -> Result<(), InvalidLogLevel> {
    let invalid = || InvalidLogLevel(level.to_owned());
    // `EnvFilter` takes a single word for the name of a module, and would log nothing.
    if !level.contains(['=', ',']) {
        level.parse::<LevelFilter>().map_err(|_| invalid())?;
    }
    let filter = EnvFilter::try_new(level).map_err(|_| invalid())?;
    let logger = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        Format::Json => logger.event_format(JsonLines::new(Timestamp::now)).init(),
        Format::Console => logger.with_target(false).with_ansi(std::io::stderr().is_terminal()).init(),
    }
    Ok(())
}

#[derive(Debug, thiserror::Error)]
#[error(
    "--log-level {0}: use error, warn, info, debug or trace, or a filter such as info,nodekeeper_operator=debug"
)]
pub struct InvalidLogLevel(String);

struct JsonLines {
    now: fn() -> Timestamp,
}

impl JsonLines {
    fn new(now: fn() -> Timestamp) -> Self {
        Self { now }
    }
}

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let level = match *event.metadata().level() {
            tracing::Level::ERROR => "error",
            tracing::Level::WARN => "warn",
            tracing::Level::INFO => "info",
            tracing::Level::DEBUG => "debug",
            tracing::Level::TRACE => "trace",
        };
        let now = (self.now)();
        let now = now.round(Unit::Millisecond).unwrap_or(now);
        let mut fields = Fields::default();
        event.record(&mut fields);
        let message = quoted(&fields.message);
        writeln!(out, "{{\"level\":\"{level}\",\"timestamp\":\"{now:.3}\",\"msg\":{message}{}}}", fields.rest)
    }
}

/// The message of an event, and its fields as `,"key":value` each.
#[derive(Default)]
struct Fields {
    message: String,
    rest: String,
}

impl Fields {
    fn add(&mut self, field: &Field, json: &str) {
        // A second `level` in one object would hide the first.
        let clash = if matches!(field.name(), "level" | "timestamp" | "msg") { "_" } else { "" };
        let name = field.name().strip_prefix("r#").unwrap_or(field.name());
        let _ = write!(self.rest, ",{}:{json}", quoted(&format!("{name}{clash}")));
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            value.clone_into(&mut self.message);
        } else {
            self.add(field, &quoted(value));
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, &value.to_string());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, &value.to_string());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, if value { "true" } else { "false" });
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        // JSON cannot represent NaN and infinity.
        let json = if value.is_finite() { value.to_string() } else { quoted(&value.to_string()) };
        self.add(field, &json);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_else(|_| "\"\"".into())
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use std::io;
    use std::sync::Arc;

    use serde_json::{Value, json};
    use tracing_subscriber::fmt::MakeWriter;

    use super::*;

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for Buffer {
        type Writer = Self;

        fn make_writer(&'a self) -> Self {
            self.clone()
        }
    }

    fn logged(log: impl FnOnce()) -> String {
        let buffer = Buffer::default();
        let now = || "2024-01-23T10:00:00.1234Z".parse().unwrap();
        let logger =
            tracing_subscriber::fmt().with_writer(buffer.clone()).event_format(JsonLines::new(now)).finish();
        tracing::subscriber::with_default(logger, log);
        let bytes = buffer.0.lock().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn lines_have_the_documented_keys_in_order() {
        let line = logged(|| tracing::info!(node = "node-1", pod = "verify-node-1", "Creating worker pod"));
        assert_eq!(
            line,
            "{\"level\":\"info\",\"timestamp\":\"2024-01-23T10:00:00.123Z\",\"msg\":\"Creating worker pod\",\
             \"node\":\"node-1\",\"pod\":\"verify-node-1\"}\n"
        );
    }

    #[test]
    fn every_event_is_one_line_of_json() {
        let nasty = "a \"quote\", a \\ and\na line\u{1b}[31m, größer, 節點";
        let line = logged(|| tracing::warn!(why = nasty, debugged = ?nasty, error = %nasty, "{nasty}"));
        assert_eq!(line.lines().count(), 1, "{line}");
        let read: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(read["level"], "warn");
        assert_eq!(read["msg"], nasty);
        assert_eq!(read["why"], nasty);
        assert_eq!(read["error"], nasty);
        assert_eq!(read["debugged"], format!("{nasty:?}"));
    }

    #[test]
    fn numbers_stay_numbers_and_fields_do_not_hide_keys() {
        let line = logged(|| {
            tracing::error!(
                nodes = 3_u64,
                skew = -2_i64,
                ready = true,
                share = 0.5,
                none = f64::NAN,
                level = "x",
                msg = "y",
                r#type = "t",
                "m"
            );
        });
        let mut read: Value = serde_json::from_str(&line).unwrap();
        read.as_object_mut().unwrap().remove("timestamp");
        assert_eq!(
            read,
            json!({"level": "error", "msg": "m", "nodes": 3, "skew": -2, "ready": true, "share": 0.5, "none": "NaN",
                   "level_": "x", "msg_": "y", "type": "t"})
        );
    }

    #[test]
    fn an_invalid_level_is_refused() {
        for level in ["loud", "info,nodekeeper_operator=loud"] {
            let error = init(Format::Json, level).unwrap_err().to_string();
            assert!(error.starts_with(&format!("--log-level {level}: use error, warn")), "{error}");
        }
    }
}
