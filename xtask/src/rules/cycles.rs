//! Rule: the modules of core do not depend on each other in a cycle.

use std::collections::{BTreeMap, BTreeSet};

use super::Violation;
use crate::code;
use crate::repo::Repo;

const ROOT: &str = "crates/core/src/";

/// By module: the modules that it uses, and where it uses each first.
type Uses<'a> = BTreeMap<&'a str, BTreeMap<String, (&'a str, usize)>>;

pub fn core_no_cycles(repo: &Repo) -> Vec<Violation> {
    let mut uses: Uses = BTreeMap::new();
    for file in repo.production_below(ROOT.trim_end_matches('/')) {
        let Some(path) = file.path.strip_prefix(ROOT) else { continue };
        let module = path.split(['/', '.']).next().unwrap_or_default();
        for (number, line) in code::production(&file.text) {
            for at in code::positions(line, "crate::") {
                let used = line[at + "crate::".len()..].chars();
                let used: String = used.take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                if used != module && module != "lib" {
                    uses.entry(module).or_default().entry(used).or_insert((&file.path, number));
                }
            }
        }
    }
    let mut found = Vec::new();
    for (module, used) in &uses {
        for (other, (path, line)) in used {
            // Every cycle has a use from a name to a later one: it is reported there.
            if *module < other.as_str() && reaches(&uses, other, module) {
                let text = format!("`{module}` uses `{other}`, which needs `{module}`: move what both need");
                found.push(Violation::new(path, *line, text));
            }
        }
    }
    found
}

fn reaches(uses: &Uses, from: &str, to: &str) -> bool {
    let (mut open, mut seen) = (vec![from], BTreeSet::new());
    while let Some(module) = open.pop() {
        if module == to {
            return true;
        }
        if seen.insert(module) {
            open.extend(uses.get(module).into_iter().flatten().map(|(used, _)| used.as_str()));
        }
    }
    false
}
