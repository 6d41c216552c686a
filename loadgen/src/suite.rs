//! Suites: scenarios in a TOML file, each a preset with changes.

use std::path::Path;

use anyhow::Context as _;
use serde::Deserialize;
use toml::{Table, Value};

use crate::plan::Plan;
use crate::presets;

/// Which of two servers has something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Which {
    /// The first.
    A,
    /// The second.
    B,
    /// Each of them.
    Both,
}

/// A file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Suite {
    /// Its name.
    #[serde(default)]
    pub name: String,
    /// Rounds of each scenario.
    #[serde(default)]
    pub rounds: Option<usize>,
    /// When a comparison with an earlier result fails.
    #[serde(default)]
    pub fail_if: Vec<String>,
    /// Servers that are started for it have certificates.
    #[serde(default)]
    pub tls: Option<Which>,
    /// They have users.
    #[serde(default)]
    pub auth: Option<Which>,
    /// Fields of all plans.
    #[serde(default)]
    defaults: Table,
    /// One after the other.
    #[serde(default, rename = "scenario")]
    scenarios: Vec<Table>,
}

impl Suite {
    /// Reads a file.
    ///
    /// # Errors
    /// With its name, and what is wrong in it.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        let suite: Self = toml::from_str(&text).with_context(|| format!("{} is no suite", path.display()))?;
        anyhow::ensure!(!suite.scenarios.is_empty(), "{} has no [[scenario]]", path.display());
        Ok(suite)
    }

    /// The plans of its scenarios.
    ///
    /// # Errors
    /// With the scenario, and what is wrong with it.
    pub fn plans(&self) -> anyhow::Result<Vec<Plan>> {
        let mut plans: Vec<Plan> = Vec::new();
        for (at, scenario) in self.scenarios.iter().enumerate() {
            let plan = self.plan(scenario).with_context(|| format!("scenario {}", at + 1))?;
            anyhow::ensure!(
                plans.iter().all(|known| known.name != plan.name),
                "two scenarios are called `{}`: give one another name",
                plan.name
            );
            plans.push(plan);
        }
        Ok(plans)
    }

    fn plan(&self, scenario: &Table) -> anyhow::Result<Plan> {
        let mut own = scenario.clone();
        let base = match own.remove("preset") {
            Some(Value::String(name)) => presets::preset(&name)?,
            None => Plan { name: "unnamed".to_owned(), ..Plan::default() },
            Some(other) => anyhow::bail!("preset = {other} is no name of a scenario"),
        };
        let mut table = Table::try_from(&base).context("writing the preset")?;
        merge(&mut table, &self.defaults);
        merge(&mut table, &own);
        let plan: Plan = table.try_into()?;
        plan.check()?;
        Ok(plan)
    }
}

/// Puts the values of one table over those of another; tables inside are merged too.
fn merge(into: &mut Table, from: &Table) {
    for (name, value) in from {
        match (into.get_mut(name), value) {
            (Some(Value::Table(into)), Value::Table(from)) => merge(into, from),
            _ => {
                into.insert(name.clone(), value.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plans(text: &str) -> anyhow::Result<Vec<Plan>> {
        toml::from_str::<Suite>(text)?.plans()
    }

    #[test]
    fn presets_defaults_and_own_values_come_in_this_order() {
        let plans = plans(
            r#"
            [defaults]
            duration = 3.0
            keys = { count = 77 }
            [[scenario]]
            preset = "watch-fanout"
            watch = { watchers = 500 }
            [[scenario]]
            preset = "large"
            compact-every = 2.5
            [[scenario]]
            name = "own"
            clients = 7
            ops = [{ op = "get", serializable = true, weight = 3 }, { op = "txn", puts = 5 }]
            "#,
        )
        .unwrap();
        let watch = plans[0].watch.as_ref().unwrap();
        assert_eq!((watch.watchers, watch.streams, plans[0].duration), (500, 100, 3.0));
        let large = &plans[1];
        assert_eq!((large.keys.count, large.keys.size, large.preload_batch), (77, 64, 128));
        assert_eq!((large.compact_every, large.disk_probe), (Some(2.5), Some(0.02)));
        assert_eq!((plans[2].clients, plans[2].keys.count, plans[2].ops.len()), (7, 77, 2));
        assert_eq!(plans[2].ops[0].weight, 3);
    }

    /// Those that are kept with loadgen.
    #[test]
    fn kept_suites_have_plans_that_make_sense() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("suites");
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let suites: Vec<_> = files.map(|file| Suite::read(&file).unwrap()).collect();
        assert!(suites.len() >= 5);
        for suite in &suites {
            assert!(!suite.plans().unwrap().is_empty());
            for rule in &suite.fail_if {
                rule.parse::<crate::compare::Rule>().unwrap();
            }
        }
        let large = suites.iter().find(|suite| suite.name == "ten million keys").unwrap();
        let plan = &large.plans().unwrap()[0];
        assert_eq!((plan.rate, plan.turn_every, plan.keys.count), (Some(5_500.0), 0.0, 10_000_000));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, word) in [
            ("[[scenario]]\npreset = \"putt\"", "putt"),
            ("[[scenario]]\npreset = \"put\"\nclientz = 3", "clientz"),
            ("[[scenario]]\npreset = \"put\"\nclients = 0", "--clients"),
            ("[[scenario]]\npreset = \"large\"\ncompact-every = 0", "compact-every"),
            ("[[scenario]]\npreset = \"put\"\nturn-every = 0.01", "give a --rate"),
            ("[[scenario]]\npreset = \"large\"\nclients = 20", "--clients 28 or more"),
            ("[[scenario]]\npreset = \"put\"\n[[scenario]]\npreset = \"put\"", "two scenarios"),
            ("[[scenario]]\nname = \"a\"\nops = [{ op = \"fly\" }]", "fly"),
        ] {
            let error = format!("{:#}", plans(text).unwrap_err());
            assert!(error.contains(word), "{error}");
        }
    }
}
