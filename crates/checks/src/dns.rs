//! `dns`: a name has an address.

use crate::net::{Net, Trouble};
use crate::run::Finding;

pub(crate) async fn check(net: &impl Net, name: &str) -> Finding {
    match net.resolve(name).await {
        Ok(addresses) => match addresses.first() {
            Some(first) if addresses.len() == 1 => Finding::passed(first.to_string()),
            Some(first) => Finding::passed(format!("{first} and {} more", addresses.len() - 1)),
            None => Finding::trouble(&Trouble::NoAddress),
        },
        Err(trouble) => Finding::trouble(&trouble),
    }
}
