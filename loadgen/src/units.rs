//! Figures as people read them.

/// A time in microseconds, as people read it.
#[must_use]
pub fn time(us: f64) -> String {
    match us {
        us if us >= 10e6 => format!("{:.1} s", us / 1e6),
        us if us >= 1e6 => format!("{:.2} s", us / 1e6),
        us if us >= 100e3 => format!("{:.0} ms", us / 1e3),
        us if us >= 10e3 => format!("{:.1} ms", us / 1e3),
        us if us >= 1e3 => format!("{:.2} ms", us / 1e3),
        us if us >= 100.0 => format!("{us:.0} us"),
        us if us >= 10.0 => format!("{us:.1} us"),
        us => format!("{us:.2} us"),
    }
}

/// A number, as people read it.
#[must_use]
pub fn amount(number: f64) -> String {
    match number {
        number if number >= 100e9 => format!("{:.0} G", number / 1e9),
        number if number >= 1e9 => format!("{:.2} G", number / 1e9),
        number if number >= 10e6 => format!("{:.1} M", number / 1e6),
        number if number >= 1e6 => format!("{:.2} M", number / 1e6),
        number if number >= 100.0 || number == number.trunc() => {
            let digits = format!("{number:.0}");
            let mut out = String::new();
            for (at, digit) in digits.chars().enumerate() {
                if at > 0 && (digits.len() - at).is_multiple_of(3) && digit.is_ascii_digit() {
                    out.push(',');
                }
                out.push(digit);
            }
            out
        }
        number => format!("{number:.2}"),
    }
}

/// Bytes, as people read them.
#[must_use]
pub fn bytes(number: f64) -> String {
    match number {
        number if number >= 1e9 => format!("{:.2} GB", number / 1e9),
        number if number >= 1e6 => format!("{:.1} MB", number / 1e6),
        number if number >= 1e3 => format!("{:.1} kB", number / 1e3),
        number => format!("{number:.0} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        assert_eq!(time(12.34), "12.3 us");
        assert_eq!(time(1_234.0), "1.23 ms");
        assert_eq!(time(12_345_678.0), "12.3 s");
        assert_eq!(amount(12_345.0), "12,345");
        assert_eq!(amount(0.5), "0.50");
        assert_eq!(bytes(1_500.0), "1.5 kB");
    }
}
