//! Resource quantities in canonical form: `1000m` is `1`, `2048Mi` is `2Gi`.

const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
/// The index of the unit in `DECIMAL`.
const UNIT: usize = 3;

/// The value of a positive, canonical quantity in billionths, for comparison.
#[must_use]
pub fn billionths(text: &str) -> Option<u128> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, suffix) = text.split_at(end);
    let mantissa: u128 = digits.parse().ok()?;
    if let Some(power) = DECIMAL.iter().position(|s| *s == suffix) {
        return mantissa.checked_mul(1000_u128.checked_pow(u32::try_from(power).ok()?)?);
    }
    let scale = match BINARY.iter().position(|s| *s == suffix) {
        Some(power) => 1024_u128.checked_pow(u32::try_from(power).ok()?)?,
        None => 10_u128.checked_pow(suffix.strip_prefix('e')?.parse().ok()?)?,
    };
    mantissa.checked_mul(scale)?.checked_mul(1_000_000_000)
}

/// The canonical form; none if the text is no quantity.
#[must_use]
pub fn canonical(text: &str) -> Option<String> {
    let (sign, number) = match text.strip_prefix('-') {
        Some(number) => ("-", number),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let end = number.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(number.len());
    let (digits, suffix) = number.split_at(end);
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let mantissa: u128 = format!("{whole}{fraction}").parse().ok()?;
    let places = i32::try_from(fraction.len()).ok().filter(|places| *places <= 30)?;
    let text = if let Some(power) = BINARY.iter().skip(1).position(|s| *s == suffix) {
        binary(mantissa, places, u32::try_from(power).ok()? + 1)?
    } else if let Some(power) = DECIMAL.iter().position(|s| *s == suffix) {
        let exponent = 3 * (i32::try_from(power).ok()? - 3) - places;
        let (mantissa, step) = in_thousands(mantissa, exponent)?;
        format!("{mantissa}{}", DECIMAL.get(usize::try_from(step + 3).ok()?)?)
    } else {
        let exponent: i32 =
            suffix.strip_prefix(['e', 'E'])?.parse().ok().filter(|e| (-30..=30).contains(e))?;
        match in_thousands(mantissa, exponent - places)? {
            (mantissa, 0) => mantissa.to_string(),
            (mantissa, step) => format!("{mantissa}e{}", step * 3),
        }
    };
    Some(if text == "0" { text } else { format!("{sign}{text}") })
}

/// The number as the smallest whole multiple of a power of a thousand, at least a billionth.
fn in_thousands(mut mantissa: u128, mut exponent: i32) -> Option<(u128, i32)> {
    if mantissa == 0 {
        return Some((0, 0));
    }
    while exponent < -9 {
        mantissa = mantissa.div_ceil(10);
        exponent += 1;
    }
    while exponent % 3 != 0 {
        mantissa = mantissa.checked_mul(10)?;
        exponent -= 1;
    }
    while mantissa.is_multiple_of(1000) && exponent / 3 < 6 {
        mantissa /= 1000;
        exponent += 3;
    }
    Some((mantissa, exponent / 3))
}

fn binary(mantissa: u128, places: i32, power: u32) -> Option<String> {
    let scale = 10_u128.checked_pow(u32::try_from(places).ok()?)?;
    let bytes = mantissa.checked_mul(1024_u128.checked_pow(power)?)?;
    if !bytes.is_multiple_of(scale) {
        // Only a decimal suffix can express fractions of a byte.
        let (mantissa, step) = in_thousands(bytes.checked_mul(1000)?.div_ceil(scale), -3)?;
        return Some(format!("{mantissa}{}", DECIMAL[usize::try_from(step).ok()? + UNIT]));
    }
    let (mut value, mut power) = (bytes / scale, 0);
    while value != 0 && value.is_multiple_of(1024) && power + 1 < BINARY.len() {
        value /= 1024;
        power += 1;
    }
    Some(format!("{value}{}", BINARY[power]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_stored_in_canonical_form() {
        for (given, kept) in [
            ("1", "1"),
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("0.5", "500m"),
            (".5", "500m"),
            ("2048Mi", "2Gi"),
            ("1.5Gi", "1536Mi"),
            ("16Gi", "16Gi"),
            ("1e10", "10e9"),
            ("1000", "1k"),
            ("110", "110"),
            ("0", "0"),
            ("-1", "-1"),
            ("100Gi", "100Gi"),
            ("12e6", "12e6"),
            ("1024", "1024"),
            ("0Mi", "0"),
            ("1000k", "1M"),
        ] {
            assert_eq!(canonical(given).as_deref(), Some(kept), "{given}");
        }
        assert!(billionths("2") > billionths("1500m") && billionths("1Gi") > billionths("1G"));
        assert!(billionths("10e9") == billionths("10G") && billionths("1k") < billionths("1Ki"));
        for bad in [
            "",
            "many",
            "1 Gi",
            "1.2.3",
            "Gi",
            "1gi",
            "1e",
            "--1",
            "1.5e-2147483648",
            "1e-2000000000",
            "1e99999999999",
        ] {
            assert_eq!(canonical(bad), None, "{bad}");
        }
    }
}
