//! Skips tests whose dependencies this machine lacks.

use std::{
    env,
    io::{self, Write as _},
};

use crate::{assets::AssetsError, machine::MachineError};

/// Turns the error of a missing dependency into `None` and a `SKIPPED` message. With `CI=true` it stays an error, so that no
/// pipeline succeeds without testing.
///
/// ```no_run
/// # use nodekeeper_e2e::{Cluster, or_skip};
/// # async fn test() -> anyhow::Result<()> {
/// let Some(cluster) = or_skip(Cluster::shared().await)? else { return Ok(()) };
/// # Ok(()) }
/// ```
pub fn or_skip<T>(needed: anyhow::Result<T>) -> anyhow::Result<Option<T>> {
    let in_ci = env::var_os("CI").is_some_and(|value| value == "true");
    match needed {
        Ok(thing) => Ok(Some(thing)),
        Err(error) if may_skip(&error, in_ci) => {
            // Not `eprintln!`: the test harness would capture it.
            let _ = writeln!(io::stderr(), "\n=== SKIPPED, no cluster: {error:#} ===\n");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn may_skip(error: &anyhow::Error, in_ci: bool) -> bool {
    !in_ci && is_unavailable(error)
}

/// Whether the error means that this machine lacks a dependency.
#[must_use]
pub fn is_unavailable(error: &anyhow::Error) -> bool {
    error.downcast_ref().is_some_and(AssetsError::is_unavailable) || error.is::<MachineError>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_missing_dependencies_skip_and_never_in_ci() {
        let lacking = AssetsError::GoMissing.into();
        assert!(may_skip(&lacking, false));
        assert!(!may_skip(&lacking, true));
        assert!(!may_skip(&AssetsError::NoCacheFolder.into(), false));
        assert!(may_skip(&MachineError::NotRoot.into(), false));
        assert!(!may_skip(&MachineError::NotRoot.into(), true));
    }
}
