//! Certificates and lists of revoked ones, as far as rules look into them that rustls leaves to its
//! users: names, serial numbers, the end of validity (RFC 5280; DER is X.690).
//!
//! A certificate is read here only after rustls has parsed it, a list comes from the operator's
//! disk; neither is trusted to be well formed.

use std::collections::BTreeSet;
use std::net::IpAddr;

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const OBJECT_IDENTIFIER: u8 = 0x06;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const UTF8_STRING: u8 = 0x0c;
const PRINTABLE_STRING: u8 = 0x13;
const TELETEX_STRING: u8 = 0x14;
const IA5_STRING: u8 = 0x16;
/// The version of a certificate, and its extensions.
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;
const DNS_NAME: u8 = 0x82;
const IP_ADDRESS: u8 = 0x87;
/// 2.5.4.3
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
/// 2.5.29.17
const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];

/// A serial number, without zeros in front.
pub(super) type Serial = Box<[u8]>;

/// Parts of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Certificate {
    pub serial: Serial,
    /// The last one of the subject, as Go takes it; none if there is none that is text, or an empty
    /// one.
    pub common_name: Option<String>,
    /// Seconds since 1970.
    pub not_before: i64,
    pub not_after: i64,
    pub dns_names: Vec<String>,
    pub addresses: Vec<IpAddr>,
}

impl Certificate {
    /// Reads a certificate; none if it is not one.
    pub(super) fn read(der: &[u8]) -> Option<Self> {
        let mut whole = Reader(der).take(SEQUENCE)?;
        let mut body = whole.take(SEQUENCE)?;
        body.take_if(VERSION);
        let serial = serial(body.take(INTEGER)?);
        body.take(SEQUENCE)?; // algorithm
        body.take(SEQUENCE)?; // issuer
        let mut validity = body.take(SEQUENCE)?;
        let (not_before, not_after) = (validity.time()?, validity.time()?);
        let common_name = common_name(body.take(SEQUENCE)?)?;
        body.take(SEQUENCE)?; // public key
        let (mut dns_names, mut addresses) = (Vec::new(), Vec::new());
        while !body.0.is_empty() {
            let (tag, extensions) = body.next()?;
            if tag == EXTENSIONS {
                read_names(extensions, &mut dns_names, &mut addresses)?;
            }
        }
        Some(Self { serial, common_name, not_before, not_after, dns_names, addresses })
    }
}

/// Whose certificate it is, with which key, and who has signed it, as they lie there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Names<'d> {
    pub issuer: &'d [u8],
    pub subject: &'d [u8],
    pub public_key: &'d [u8],
}

impl<'d> Names<'d> {
    /// Reads a certificate as far as its key; none if it is not one.
    pub(super) fn read(der: &'d [u8]) -> Option<Self> {
        let mut body = Reader(der).take(SEQUENCE)?.take(SEQUENCE)?;
        body.take_if(VERSION);
        body.take(INTEGER)?; // serial number
        body.take(SEQUENCE)?; // algorithm
        let issuer = body.take(SEQUENCE)?.0;
        body.take(SEQUENCE)?; // validity
        Some(Self { issuer, subject: body.take(SEQUENCE)?.0, public_key: body.take(SEQUENCE)?.0 })
    }
}

fn common_name(mut subject: Reader<'_>) -> Option<Option<String>> {
    let mut found = None;
    while !subject.0.is_empty() {
        let mut set = subject.take(SET)?;
        while !set.0.is_empty() {
            let mut attribute = set.take(SEQUENCE)?;
            let kind = attribute.take(OBJECT_IDENTIFIER)?;
            let (tag, value) = attribute.next()?;
            if kind.0 == COMMON_NAME {
                let is_text = matches!(tag, UTF8_STRING | PRINTABLE_STRING | TELETEX_STRING | IA5_STRING);
                let text = std::str::from_utf8(value.0).ok().filter(|text| is_text && !text.is_empty());
                found = text.map(str::to_owned);
            }
        }
    }
    Some(found)
}

fn read_names(extensions: Reader<'_>, dns: &mut Vec<String>, addresses: &mut Vec<IpAddr>) -> Option<()> {
    let mut extensions = Reader(extensions.0).take(SEQUENCE)?;
    while !extensions.0.is_empty() {
        let mut extension = extensions.take(SEQUENCE)?;
        if extension.take(OBJECT_IDENTIFIER)?.0 != SUBJECT_ALT_NAME {
            continue;
        }
        let mut value = None;
        while !extension.0.is_empty() {
            let (tag, inner) = extension.next()?;
            value = (tag == OCTET_STRING).then_some(inner).or(value);
        }
        let mut names = value?.take(SEQUENCE)?;
        while !names.0.is_empty() {
            match names.next()? {
                (DNS_NAME, name) => dns.push(std::str::from_utf8(name.0).ok()?.to_owned()),
                (IP_ADDRESS, address) => addresses.push(match address.0 {
                    bytes if bytes.len() == 4 => IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?),
                    bytes => IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?),
                }),
                _ => {}
            }
        }
    }
    Some(())
}

/// The serial numbers that a list of revoked certificates has; none if it is not such a list.
pub(super) fn revoked(der: &[u8]) -> Option<BTreeSet<Serial>> {
    let mut outside = Reader(der);
    let mut whole = outside.take(SEQUENCE)?;
    if !outside.0.is_empty() {
        return None;
    }
    let mut body = whole.take(SEQUENCE)?;
    whole.take(SEQUENCE)?;
    whole.take(BIT_STRING)?; // a list that is cut off has no signature
    body.take_if(INTEGER);
    body.take(SEQUENCE)?; // algorithm
    body.take(SEQUENCE)?; // issuer
    body.time()?;
    if matches!(body.0.first(), Some(&(UTC_TIME | GENERALIZED_TIME))) {
        body.time()?;
    }
    let mut found = BTreeSet::new();
    if body.0.first() != Some(&SEQUENCE) {
        return Some(found); // nothing is revoked
    }
    let mut entries = body.take(SEQUENCE)?;
    while !entries.0.is_empty() {
        found.insert(serial(entries.take(SEQUENCE)?.take(INTEGER)?));
    }
    Some(found)
}

fn serial(number: Reader<'_>) -> Serial {
    let zeros = number.0.iter().take_while(|byte| **byte == 0).count();
    number.0[zeros..].into()
}

/// Values one behind the other.
#[derive(Clone, Copy)]
struct Reader<'d>(&'d [u8]);

impl<'d> Reader<'d> {
    /// The next value and its tag.
    fn next(&mut self) -> Option<(u8, Reader<'d>)> {
        let (&[tag, first], rest) = self.0.split_first_chunk()?;
        let (len, rest) = match usize::from(first) {
            short @ 0..=0x7f => (short, rest),
            // More than three bytes of a length are more than any such file has.
            long @ 0x81..=0x83 => {
                let (bytes, rest) = rest.split_at_checked(long - 0x80)?;
                (bytes.iter().fold(0, |len, byte| len << 8 | usize::from(*byte)), rest)
            }
            _ => return None,
        };
        let (value, rest) = rest.split_at_checked(len)?;
        self.0 = rest;
        Some((tag, Reader(value)))
    }

    fn take(&mut self, tag: u8) -> Option<Reader<'d>> {
        let (found, value) = self.next()?;
        (found == tag).then_some(value)
    }

    fn take_if(&mut self, tag: u8) -> Option<Reader<'d>> {
        (self.0.first() == Some(&tag)).then(|| self.take(tag)).flatten()
    }

    /// Seconds since 1970 of `YYMMDDhhmmssZ`, or with all four digits of the year.
    fn time(&mut self) -> Option<i64> {
        let (tag, text) = self.next()?;
        let (digits, year_digits) = match tag {
            UTC_TIME => (text.0, 2),
            GENERALIZED_TIME => (text.0, 4),
            _ => return None,
        };
        let (digits, zone) = digits.split_at_checked(year_digits + 10)?;
        if zone != b"Z" || !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let number = |at: &[u8]| at.iter().fold(0, |all, digit| all * 10 + i64::from(digit - b'0'));
        let (year, rest) = digits.split_at(year_digits);
        let year = match (number(year), tag) {
            (year, GENERALIZED_TIME) => year,
            (year @ 50.., _) => 1900 + year,
            (year, _) => 2000 + year,
        };
        let part = |at: usize| number(&rest[at * 2..at * 2 + 2]);
        let days = days(year, part(0), part(1))?;
        Some(((days * 24 + part(2)) * 60 + part(3)) * 60 + part(4))
    }
}

/// Days from 1970 to a date.
fn days(year: i64, month: i64, day: i64) -> Option<i64> {
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Years that begin in March have their leap day at the end.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    Some(year * 365 + leap_days + (month * 153 + 2) / 5 + day - 1 - 719_468)
}

#[cfg(test)]
mod tests {
    use rcgen::{
        CertificateParams, CertificateRevocationListParams, DnType, Issuer, KeyIdMethod, KeyPair,
        RevokedCertParams, SerialNumber, date_time_ymd,
    };

    use super::*;

    fn made(names: &[&str], common_name: Option<&str>) -> Vec<u8> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        if let Some(name) = common_name {
            params.distinguished_name.push(DnType::OrganizationName, "somebody");
            params.distinguished_name.push(DnType::CommonName, name);
        }
        params.serial_number = Some(SerialNumber::from_slice(&[0, 0x9c, 7]));
        params.not_before = date_time_ymd(1999, 12, 31);
        params.not_after = date_time_ymd(2050, 3, 1);
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    #[test]
    fn names_times_and_the_number_of_a_certificate_are_read() {
        let found = Certificate::read(&made(&["a.example", "*.b", "10.0.0.7", "::1"], Some("root"))).unwrap();
        assert_eq!(found.common_name.as_deref(), Some("root"));
        assert_eq!(*found.serial, [0x9c, 7]);
        assert_eq!((found.not_before, found.not_after), (946_598_400, 2_529_705_600));
        assert_eq!(found.dns_names, ["a.example", "*.b"]);
        assert_eq!(found.addresses, ["10.0.0.7".parse::<IpAddr>().unwrap(), "::1".parse().unwrap()]);
        assert_eq!(Certificate::read(&made(&[], None)).unwrap().common_name, None);
        assert_eq!(Certificate::read(&made(&[], Some(""))).unwrap().common_name, None, "empty is none");
    }

    #[test]
    fn dates_are_counted_in_days() {
        for (date, expected) in [
            ((1970, 1, 1), 0),
            ((1969, 12, 31), -1),
            ((2000, 2, 29), 11_016),
            ((2000, 3, 1), 11_017),
            ((2100, 3, 1), 47_541),
        ] {
            assert_eq!(days(date.0, date.1, date.2), Some(expected), "{date:?}");
        }
        assert_eq!(days(2000, 13, 1), None);
    }

    fn list(serials: &[u8]) -> Vec<u8> {
        let mut authority = CertificateParams::new([]).unwrap();
        authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        authority.key_usages = vec![rcgen::KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let revoked = |serial: &u8| RevokedCertParams {
            serial_number: SerialNumber::from(u64::from(*serial)),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(2044, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&Issuer::from_params(&authority, &key)).unwrap().der().to_vec()
    }

    #[test]
    fn the_numbers_of_revoked_certificates_are_read() {
        let numbers = |serials: &[u8]| -> Vec<Vec<u8>> {
            revoked(&list(serials)).unwrap().iter().map(|serial| serial.to_vec()).collect()
        };
        assert_eq!(numbers(&[]), Vec::<Vec<u8>>::new());
        assert_eq!(numbers(&[200, 7]), [vec![7], vec![200]], "without zeros in front");
        // A list of numbers that is too long for what it lies in is damage, not an empty list.
        let mut damaged = list(&[200, 7]);
        let entries = (0..damaged.len()).filter(|at| damaged[*at] == SEQUENCE).find(|at| {
            let mut behind = Reader(&damaged[*at..]);
            behind.take(SEQUENCE).is_some_and(|mut first| {
                first
                    .take(SEQUENCE)
                    .and_then(|mut entry| entry.take(INTEGER))
                    .is_some_and(|number| number.0.len() <= 2)
            })
        });
        damaged[entries.unwrap() + 1] = 0x7f;
        assert_eq!(revoked(&damaged), None);
    }

    /// Every cut, and every byte replaced by some others: nothing panics, and no cut is taken for
    /// the whole.
    #[test]
    fn damaged_files_are_refused_or_read_but_never_panic() {
        let (certificate, list) = (made(&["a.example", "10.0.0.7"], Some("root")), list(&[1, 2, 3]));
        for cut in 0..certificate.len() {
            assert_eq!(Certificate::read(&certificate[..cut]), None, "cut at {cut}");
            assert_eq!(Names::read(&certificate[..cut]), None, "cut at {cut}");
        }
        for cut in 0..list.len() {
            assert_eq!(revoked(&list[..cut]), None, "cut at {cut}");
        }
        for bytes in [certificate, list] {
            for at in 0..bytes.len() {
                for byte in [0, 1, 0x30, 0x7f, 0x80, 0x83, 0x84, 0xff] {
                    let mut damaged = bytes.clone();
                    damaged[at] = byte;
                    let _ = (Certificate::read(&damaged), Names::read(&damaged), revoked(&damaged));
                }
            }
        }
    }
}
