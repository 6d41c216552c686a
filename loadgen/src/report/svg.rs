//! Line and bar charts as SVG, drawn by hand: they stand inside a page, take its colours, and need
//! no script.

use std::fmt::Write as _;

/// Outer size, and what axes take of it.
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 44.0;
/// Colours the page has; series beyond them begin again with dashes.
pub const COLOURS: usize = 6;

/// Points of a line that say their figures; in longer lines the highest of neighbours does, so that
/// a page of a long run stays small.
const DOTS_MAX: usize = 240;

/// How figures lie on an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Evenly.
    Linear,
    /// By their logarithms.
    Log,
    /// Percentiles, each nine as wide as the one before.
    Percentile,
}

/// An axis.
#[derive(Clone, Copy)]
pub struct Axis {
    /// The quantity, with its unit.
    pub label: &'static str,
    /// How.
    pub scale: Scale,
    /// One figure in words.
    pub show: fn(f64) -> String,
}

/// A line, or the tops of bars.
pub struct Series {
    /// In the legend.
    pub name: String,
    /// Which of the page's colours.
    pub colour: usize,
    /// Dashed, to be told from another of the same colour.
    pub is_dashed: bool,
    /// From left to right.
    pub points: Vec<(f64, f64)>,
}

/// A moment on the way from left to right.
#[derive(Debug, Clone, PartialEq)]
pub struct Mark {
    /// Where.
    pub at: f64,
    /// In words.
    pub word: String,
}

/// A chart.
pub struct Chart {
    /// Above it.
    pub title: String,
    /// From left to right.
    pub x: Axis,
    /// From bottom to top.
    pub y: Axis,
    /// Its lines.
    pub series: Vec<Series>,
    /// Bars from the bottom instead of lines.
    pub are_bars: bool,
    /// Lines from bottom to top.
    pub marks: Vec<Mark>,
}

/// Text inside markup.
#[must_use]
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Where a figure lies before the axis is stretched to its place.
fn place(scale: Scale, figure: f64) -> f64 {
    match scale {
        Scale::Linear => figure,
        Scale::Log => figure.max(1e-9).log10(),
        // 0 is 0, 90 % is 1, 99 % is 2 ...
        Scale::Percentile => -(1.0 - figure.clamp(0.0, 0.999_999_9)).log10(),
    }
}

/// An axis with its ends, and the room it has.
struct Ruler {
    axis: Axis,
    from: f64,
    to: f64,
    start: f64,
    length: f64,
}

impl Ruler {
    fn new(axis: Axis, figures: impl Iterator<Item = f64>, start: f64, length: f64) -> Self {
        let (mut least, mut most) = (f64::MAX, f64::MIN);
        // Where the axis is logarithmic, no place is 0, and seconds without a call are not drawn.
        let has_place = |figure: &f64| figure.is_finite() && (*figure > 0.0 || axis.scale != Scale::Log);
        for figure in figures.filter(has_place) {
            least = least.min(figure);
            most = most.max(figure);
        }
        if least > most {
            (least, most) = (0.0, 1.0);
        }
        let (mut from, mut to) = match axis.scale {
            Scale::Linear => (least.min(0.0), most * 1.05),
            Scale::Log => (place(Scale::Log, least).floor(), place(Scale::Log, most).ceil()),
            Scale::Percentile => (0.0, place(Scale::Percentile, most).ceil()),
        };
        if to <= from {
            (from, to) = (from, from + 1.0);
        }
        Self { axis, from, to, start, length }
    }

    fn at(&self, figure: f64) -> f64 {
        let share = (place(self.axis.scale, figure) - self.from) / (self.to - self.from);
        self.start + share.clamp(0.0, 1.0) * self.length
    }

    /// Figures that get a line and a word.
    fn ticks(&self) -> Vec<f64> {
        #[expect(clippy::cast_possible_truncation, reason = "a handful of powers")]
        let powers = || (self.from.floor() as i32)..=(self.to.ceil() as i32);
        match self.axis.scale {
            Scale::Log if self.to - self.from <= 2.0 => {
                let fine = powers().flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10_f64.powi(power)));
                fine.filter(|figure| (self.from..=self.to + 1e-9).contains(&figure.log10())).collect()
            }
            Scale::Log => powers().map(|power| 10_f64.powi(power)).collect(),
            Scale::Percentile => {
                let nines = powers().filter(|power| *power > 0).map(|power| 1.0 - 10_f64.powi(-power));
                std::iter::once(0.5).chain(nines).collect()
            }
            Scale::Linear => {
                let rough = (self.to - self.from) / 5.0;
                let power = 10_f64.powf(rough.log10().floor());
                let step = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power);
                let step = step.into_iter().find(|step| *step >= rough).unwrap_or(rough);
                let first = (self.from / step).ceil();
                let ticks = (0..12).map(|at| (first + f64::from(at)) * step);
                ticks.take_while(|tick| *tick <= self.to).collect()
            }
        }
    }
}

impl Chart {
    /// As SVG.
    #[must_use]
    pub fn draw(&self) -> String {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let x = Ruler::new(self.x, points().map(|point| point.0), LEFT, WIDTH - LEFT - RIGHT);
        let height = HEIGHT - TOP - BOTTOM;
        let y = Ruler::new(self.y, points().map(|point| point.1), HEIGHT - BOTTOM, -height);
        let mut out = format!(
            "<figure><figcaption>{}</figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
            escaped(&self.title),
            escaped(&self.title)
        );
        self.draw_axes(&mut out, &x, &y);
        self.draw_marks(&mut out, &x);
        for series in &self.series {
            if self.are_bars {
                self.draw_bars(&mut out, series, &x, &y);
            } else {
                self.draw_line(&mut out, series, &x, &y);
            }
        }
        out += "</svg><div class=\"legend\">";
        for series in &self.series {
            let dashes = if series.is_dashed { " dashed" } else { "" };
            let _ = write!(
                out,
                "<span><i class=\"c{}{dashes}\"></i>{}</span>",
                series.colour % COLOURS,
                escaped(&series.name)
            );
        }
        out += "</div></figure>\n";
        out
    }

    fn draw_axes(&self, out: &mut String, x: &Ruler, y: &Ruler) {
        let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        for tick in y.ticks() {
            let at = y.at(tick);
            let _ = write!(
                out,
                "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\"/>"
            );
            let word = escaped(&(self.y.show)(tick));
            let _ = write!(
                out,
                "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{word}</text>",
                LEFT - 6.0,
                at + 4.0
            );
        }
        for tick in x.ticks() {
            let at = x.at(tick);
            let _ = write!(
                out,
                "<line class=\"grid\" x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{bottom}\"/>"
            );
            let word = escaped(&(self.x.show)(tick));
            let _ = write!(
                out,
                "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{word}</text>",
                bottom + 16.0
            );
        }
        let middle = f64::midpoint(LEFT, right);
        let _ = write!(
            out,
            "<text class=\"label\" x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            HEIGHT - 6.0,
            escaped(self.x.label)
        );
        let middle = f64::midpoint(TOP, bottom);
        let _ = write!(
            out,
            "<text class=\"label\" transform=\"translate(14 {middle}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            escaped(self.y.label)
        );
    }

    fn draw_marks(&self, out: &mut String, x: &Ruler) {
        for mark in &self.marks {
            let (at, bottom) = (x.at(mark.at), HEIGHT - BOTTOM);
            let word = escaped(&format!("{} at {}", mark.word, (self.x.show)(mark.at)));
            let _ = write!(
                out,
                "<line class=\"mark\" x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{bottom}\"><title>{word}</title></line>"
            );
        }
    }

    fn word(&self, series: &Series, point: &(f64, f64)) -> String {
        escaped(&format!("{}: {} at {}", series.name, (self.y.show)(point.1), (self.x.show)(point.0)))
    }

    /// Points that have a place.
    fn drawn<'s>(&self, series: &'s Series) -> impl Iterator<Item = &'s (f64, f64)> {
        let is_log = self.y.scale == Scale::Log;
        series.points.iter().filter(move |point| point.1.is_finite() && (point.1 > 0.0 || !is_log))
    }

    fn draw_line(&self, out: &mut String, series: &Series, x: &Ruler, y: &Ruler) {
        let places = self.drawn(series).map(|point| format!("{:.1},{:.1}", x.at(point.0), y.at(point.1)));
        let path: Vec<_> = places.collect();
        let dashes = if series.is_dashed { " dashed" } else { "" };
        let colour = series.colour % COLOURS;
        let _ = write!(out, "<polyline class=\"line c{colour}{dashes}\" points=\"{}\"/>", path.join(" "));
        let points: Vec<_> = self.drawn(series).collect();
        for group in points.chunks(points.len().div_ceil(DOTS_MAX).max(1)) {
            let Some(point) = group.iter().max_by(|a, b| a.1.total_cmp(&b.1)) else { continue };
            let _ = write!(
                out,
                "<circle class=\"dot c{colour}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"5\"><title>{}</title></circle>",
                x.at(point.0),
                y.at(point.1),
                self.word(series, point)
            );
        }
    }

    fn draw_bars(&self, out: &mut String, series: &Series, x: &Ruler, y: &Ruler) {
        let bottom = HEIGHT - BOTTOM;
        for pair in series.points.windows(2) {
            let (left, right) = (x.at(pair[0].0), x.at(pair[1].0));
            let top = y.at(pair[0].1);
            let _ = write!(
                out,
                "<rect class=\"bar c{}\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>{}</title></rect>",
                series.colour % COLOURS,
                (right - left).max(0.5),
                (bottom - top).max(0.0),
                self.word(series, &pair[0])
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(scale: Scale, points: Vec<(f64, f64)>) -> String {
        let axis = |scale| Axis { label: "l", scale, show: |figure| format!("{figure}") };
        let series = vec![Series { name: "a<b".to_owned(), colour: 0, is_dashed: false, points }];
        Chart {
            title: "t".to_owned(),
            x: axis(Scale::Linear),
            y: axis(scale),
            series,
            are_bars: false,
            marks: Vec::new(),
        }
        .draw()
    }

    #[test]
    fn charts_stay_in_their_frame_whatever_they_show() {
        for scale in [Scale::Linear, Scale::Log, Scale::Percentile] {
            for points in [
                vec![],
                vec![(0.0, 0.0)],
                vec![(1.0, 1.0), (2.0, 1e9)],
                vec![(1.0, f64::NAN), (2.0, f64::INFINITY), (3.0, -1.0)],
            ] {
                let text = chart(scale, points);
                assert!(text.contains("a&lt;b") && !text.contains("a<b"));
                for number in text.split("cy=\"").skip(1).filter_map(|rest| rest.split('"').next()) {
                    let at: f64 = number.parse().unwrap();
                    assert!((0.0..=HEIGHT).contains(&at), "{at} in {text}");
                }
            }
        }
    }

    #[test]
    fn the_highest_points_of_a_long_line_say_their_figures() {
        let height = |at: u32| if at == 1_234 { 77.0 } else { 1.0 };
        let text = chart(Scale::Linear, (0..5_000).map(|at| (f64::from(at), height(at))).collect());
        let dots = text.matches("<circle").count();
        assert!((DOTS_MAX / 2..=DOTS_MAX).contains(&dots) && text.contains("77 at 1234"), "{dots}");
    }

    /// Seconds without a call have no place on a logarithmic axis, and do not stretch it.
    #[test]
    fn zeros_leave_a_logarithmic_axis_as_it_is() {
        let words = |last| {
            let text = chart(Scale::Log, vec![(1.0, 10.0), (2.0, 900.0), (3.0, last)]);
            text.matches("<text").count()
        };
        assert_eq!(words(0.0), words(20.0));
    }

    #[test]
    fn percentiles_get_a_place_for_each_nine() {
        assert!((place(Scale::Percentile, 0.9) - 1.0).abs() < 1e-9);
        assert!((place(Scale::Percentile, 0.999) - 3.0).abs() < 1e-9);
    }
}
