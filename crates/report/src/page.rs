//! The frame that all pages have.

use maud::{DOCTYPE, Markup, PreEscaped, html};

const STYLE: &str = include_str!("../html/report.css");

/// A page as one HTML document, with nothing outside itself.
pub struct Page<'a> {
    /// Its title; text.
    pub title: &'a str,
    /// Style sheets before and after the one of all pages.
    pub styles: [&'a str; 2],
    /// What stands above its parts.
    pub header: Markup,
    /// Its parts.
    pub main: Markup,
    /// Scripts, in order.
    pub scripts: Markup,
}

impl Page<'_> {
    /// The document.
    pub fn html(self) -> String {
        let [before, after] = self.styles;
        let document = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    title { (self.title) }
                    style { (PreEscaped(before)) (PreEscaped(STYLE)) (PreEscaped(after)) }
                }
                body {
                    header { h1 { (self.title) } (self.header) }
                    main { (self.main) }
                    footer { "Made by Shardloom." }
                    (self.scripts)
                }
            }
        };
        document.into_string()
    }
}

/// A script of several files.
pub fn script(files: &[&str]) -> Markup {
    html! { script { (PreEscaped("\"use strict\";\n")) @for file in files { (PreEscaped(file)) } } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_all_styles_in_order_and_its_parts_as_text_and_markup() {
        let page = Page {
            title: "A < B",
            styles: ["before{}", "after{}"],
            header: html! { "above" },
            main: html! { b { "part" } },
            scripts: script(&["one();", "two();"]),
        };
        let text = page.html();
        assert!(!STYLE.is_empty());
        for part in [
            "<title>A &lt; B</title>".to_owned(),
            format!("<style>before{{}}{STYLE}after{{}}</style>"),
            "<header><h1>A &lt; B</h1>above</header>".to_owned(),
            "<main><b>part</b></main>".to_owned(),
            "<script>\"use strict\";\none();two();</script>".to_owned(),
        ] {
            assert!(text.contains(&part), "the page lacks {part}");
        }
    }
}
