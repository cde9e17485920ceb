//! `http`: a URL responds with an expected status.

use nodekeeper_core::checks::StatusRange;
use nodekeeper_core::report::{Outcome, reason};

use crate::net::Net;
use crate::run::Finding;
use crate::url::Url;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::NetError;
    use crate::net::fake::{Fake, Reply};

    async fn status(reply: fn() -> Reply<u16>, expected: StatusRange) -> (Outcome, &'static str) {
        let url = Url::read("http://a.example/").expect("it is one");
        let finding = check(&Fake::new().on_get(move |_| reply()), &url, expected, None).await;
        (finding.outcome, finding.reason)
    }

    #[tokio::test(start_paused = true)]
    async fn a_status_is_in_the_range_or_not() {
        let usual = StatusRange::default();
        assert_eq!(status(|| Some(Ok(200)), usual).await, (Outcome::Passed, ""));
        assert_eq!(status(|| Some(Ok(301)), usual).await, (Outcome::Passed, ""));
        assert_eq!(status(|| Some(Ok(404)), usual).await, (Outcome::Failed, reason::UNEXPECTED_STATUS));
        assert_eq!(status(|| Some(Ok(401)), StatusRange { min: 401, max: 401 }).await, (Outcome::Passed, ""));
        assert_eq!(status(|| Some(Err(NetError::Refused)), usual).await, (Outcome::Failed, reason::REFUSED));
        let no_client = || Some(Err(NetError::NoClient("no such file".into())));
        assert_eq!(status(no_client, usual).await, (Outcome::Inconclusive, reason::NO_CLIENT));
    }
}
