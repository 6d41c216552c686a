//! Metrics as text, in the format that Prometheus reads: families of samples, each with what it is.

use std::fmt::{Display, Write as _};

/// The type of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It only grows while the process lives.
    Counter,
    /// It goes up and down.
    Gauge,
    /// How many observations were at most so large, for several sizes.
    Histogram,
}

/// The text so far.
#[derive(Debug, Default)]
pub struct Exposition(String);

/// A family that samples are added to.
#[derive(Debug)]
pub struct Family<'e> {
    text: &'e mut String,
    name: &'static str,
}

impl Exposition {
    /// Begins a family.
    pub fn family(&mut self, name: &'static str, kind: Kind, help: &str) -> Family<'_> {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        add(&mut self.0, format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
        Family { text: &mut self.0, name }
    }

    /// A family of one sample without labels.
    pub fn one(&mut self, name: &'static str, kind: Kind, help: &str, value: impl Display) {
        self.family(name, kind, help).sample("", &[], value);
    }

    /// The whole text.
    #[must_use]
    pub fn into_text(self) -> String {
        self.0
    }
}

impl Family<'_> {
    /// Adds a sample; its name ends with `suffix` behind that of the family.
    pub fn sample(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        add(self.text, format_args!("{}{suffix}", self.name));
        for (at, (label, value)) in labels.iter().enumerate() {
            let before = if at == 0 { '{' } else { ',' };
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            add(self.text, format_args!("{before}{label}=\"{value}\""));
        }
        let after = if labels.is_empty() { " " } else { "} " };
        add(self.text, format_args!("{after}{value}\n"));
    }
}

fn add(text: &mut String, more: std::fmt::Arguments<'_>) {
    text.write_fmt(more).expect("a String takes everything");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_labels_and_values_stand_where_prometheus_looks_for_them() {
        let mut text = Exposition::default();
        text.one("plain", Kind::Gauge, "One line,\nthen \\ another.", 0.25);
        let mut family = text.family("calls_total", Kind::Counter, "Calls.");
        family.sample("", &[("to", "a \"b\"\\\n"), ("code", "OK")], 7_u64);
        text.family("seconds", Kind::Histogram, "How long.").sample("_bucket", &[("le", "+Inf")], 1);
        let expected = "# HELP plain One line,\\nthen \\\\ another.\n# TYPE plain gauge\nplain 0.25\n\
             # HELP calls_total Calls.\n# TYPE calls_total counter\n\
             calls_total{to=\"a \\\"b\\\"\\\\\\n\",code=\"OK\"} 7\n\
             # HELP seconds How long.\n# TYPE seconds histogram\nseconds_bucket{le=\"+Inf\"} 1\n";
        assert_eq!(text.into_text(), expected);
    }
}
