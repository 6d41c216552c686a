//! The report in a real browser: Chromium without a screen, where there is one (Debian: `apt-get
//! install chromium`).

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

mod programs;

use std::path::{Path, PathBuf};
use std::process::Command;

use programs::{good, revd};

/// Without these a browser looks for its makers' servers.
const FLAGS: [&str; 8] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
];

fn chromium() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut names = std::env::split_paths(&path)
        .flat_map(|folder| ["chromium", "chromium-browser"].map(|name| folder.join(name)));
    names.find(|program| program.is_file())
}

fn browse(browser: &Path, folder: &Path, more: &[String], page: &Path) -> String {
    let profile = folder.join("profile");
    let output = Command::new(browser)
        .args(FLAGS)
        .arg(format!("--user-data-dir={}", profile.display()))
        .args(more)
        .arg(format!("file://{}", page.display()))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Addresses that the browser was asked for, by its own log of the network.
fn requested(log: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(log).unwrap();
    let urls = text.split("\"url\":\"").skip(1).filter_map(|rest| rest.split('"').next());
    urls.map(str::to_owned).collect()
}

#[test]
fn the_report_opens_offline_and_shows_its_plots() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("report.html");
    good(&[
        "watch-fanout",
        "--server",
        revd().to_str().unwrap(),
        "--watchers=20",
        "--streams=5",
        "--duration=3s",
        "--compact-every=1s",
        "--disk-probe=100ms",
        "--html",
        page.to_str().unwrap(),
        "-q",
    ]);
    let text = std::fs::read_to_string(&page).unwrap();
    for outside in ["<script", "<link", "<img", "src=", "href=", "@import", "url("] {
        assert!(!text.contains(outside), "the page refers to something outside: {outside}");
    }
    let Some(browser) = chromium() else {
        assert!(std::env::var_os("CI").is_none(), "CI must have a Chromium; .ci/run installs one");
        eprintln!("skipped: there is no Chromium here");
        return;
    };
    let log = folder.path().join("net.json");
    let dom = browse(
        &browser,
        folder.path(),
        &["--dump-dom".to_owned(), format!("--log-net-log={}", log.display())],
        &page,
    );
    assert!(dom.contains("latency by percentile") && dom.contains("delay of events"));
    assert!(dom.contains("slowest each second") && dom.contains("raw fdatasync"));
    // The browser has taken in all that the page has.
    for (what, least) in [("<svg", 4), ("<polyline", 3), ("class=\"bar", 3), ("class=\"mark", 4)] {
        let (shown, written) = (dom.matches(what).count(), text.matches(what).count());
        assert!(shown == written && written >= least, "{what}: {shown} are shown of {written}\n{text}");
    }
    // The browser's own questions to its makers are none of the page's, which loads nothing, as was
    // seen above.
    let own = |url: &String| {
        ["file:", "data:", "chrome"].iter().any(|scheme| url.starts_with(scheme)) || url.contains(".google")
    };
    let outside: Vec<_> = requested(&log).into_iter().filter(|url| !own(url)).collect();
    assert!(outside.is_empty(), "{outside:?}");
    // It is drawn, in light and in dark: pictures of a page with plots do not compress to nothing.
    for scheme in ["1", "0"] {
        let picture = folder.path().join(format!("{scheme}.png"));
        let more = [
            format!("--screenshot={}", picture.display()),
            "--window-size=1400,1200".to_owned(),
            format!("--blink-settings=preferredColorScheme={scheme}"),
        ];
        browse(&browser, folder.path(), &more, &page);
        assert!(std::fs::metadata(&picture).unwrap().len() > 15_000, "the page looks empty");
    }
}
