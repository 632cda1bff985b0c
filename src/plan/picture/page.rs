//! All arenas of one or more plans on one page.
//!
//! Rank 2. Part of `plan::picture`.

use std::fmt::{self, Write};

use super::chart::Chart;
use crate::escape::Markup;
use crate::plan::{PlanReport, PlanRequest};

/// The style of the page; that of the charts is theirs.
const STYLE: &str = "\
:root{color-scheme:light dark}body{margin:24px;font:14px system-ui,sans-serif;background:Canvas;color:CanvasText}\
h1{font-size:18px;font-weight:600}h2{font-size:15px;font-weight:600;margin:28px 0 0}p{max-width:72ch}\
table{border-spacing:16px 12px;margin-left:-16px}th{text-align:left;font-weight:600}td{vertical-align:top}";

/// A page with the plans of one or more requests side by side: a row an arena, a column a
/// plan, the arenas of a row on one scale.
///
/// # Examples
///
/// ```
/// use device_memory::plan::{Algorithm, PlanOptions, PlanPage, PlanRequest, PlanValue};
///
/// let mut request = PlanRequest::new();
/// request.push(PlanValue::new(4096, 0..=2).named("query"));
/// request.push(PlanValue::new(1024, 0..=2).on("cuda:0".parse()?));
/// let greedy = request.plan(&PlanOptions::new(Algorithm::ExecutorchGreedy))?;
/// let best = request.plan(&PlanOptions::default())?;
///
/// let html = PlanPage::new("attention")
///     .with("decode", &request, [("greedy", &greedy), ("best", &best)])
///     .to_html();
///
/// assert_eq!(html.matches("<svg").count(), 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct PlanPage<'a> {
    title: &'a str,
    sections: Vec<Section<'a>>,
}

/// A request, and plans of it under their headings.
#[derive(Clone, Debug)]
struct Section<'a> {
    heading: &'a str,
    request: &'a PlanRequest,
    plans: Vec<(&'a str, &'a PlanReport)>,
}

impl<'a> PlanPage<'a> {
    /// A page without plans.
    #[must_use]
    pub fn new(title: &'a str) -> Self {
        Self {
            title,
            sections: Vec::new(),
        }
    }

    /// The same with a request more below, under a heading, and with plans of it, each
    /// under its own.
    #[must_use]
    pub fn with(
        mut self,
        heading: &'a str,
        request: &'a PlanRequest,
        plans: impl IntoIterator<Item = (&'a str, &'a PlanReport)>,
    ) -> Self {
        self.sections.push(Section {
            heading,
            request,
            plans: plans.into_iter().collect(),
        });
        self
    }

    /// The page as HTML, in one file that needs no other.
    #[must_use]
    pub fn to_html(&self) -> String {
        let mut html = String::new();
        // Writing to a string does not fail.
        let _ = self.write(&mut html);
        html
    }

    fn write(&self, html: &mut String) -> fmt::Result {
        let title = Markup(self.title);
        write!(
            html,
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\
             <style>{STYLE}</style></head><body><h1>{title}</h1>\
             <p>Steps go to the right, offsets up. A rectangle is a value; point at it for its name, size and steps. \
             The line is the bytes alive, the dashes what no plan can be smaller than.</p>"
        )?;
        for section in &self.sections {
            section.write(html)?;
        }
        html.write_str("</body></html>\n")
    }
}

impl Section<'_> {
    fn write(&self, html: &mut String) -> fmt::Result {
        write!(html, "<h2>{}</h2><table><tr>", Markup(self.heading))?;
        for (heading, _) in &self.plans {
            write!(html, "<th>{}</th>", Markup(heading))?;
        }
        html.write_str("</tr>")?;
        let rows = self.plans.iter().map(|(_, report)| report.arenas.len());
        for index in 0..rows.max().unwrap_or(0) {
            html.write_str("<tr>")?;
            let arenas = self
                .plans
                .iter()
                .filter_map(|(_, report)| report.arenas.get(index));
            let highest = arenas.map(|arena| arena.peak).max().unwrap_or(0);
            for (_, report) in &self.plans {
                html.write_str("<td>")?;
                if let Some(chart) = Chart::on_scale(self.request, report, index, highest) {
                    write!(html, "{chart}")?;
                }
                html.write_str("</td>")?;
            }
            html.write_str("</tr>")?;
        }
        html.write_str("</table>")
    }
}
