package muster_test

import (
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// refusedPhrases are ways of speaking that readers stumbled over, each with the term of the field.
// They are refused in pages and in the texts that programs print.
var refusedPhrases = []struct{ pattern, instead string }{
	{`\b(gives?|gave|giving) way\b`, "preempt, yield"},
	{`\bin the way\b`, "blocked by"},
	{`\bahead of it\b`, "ignoring queue order"},
	{`\b(keeps?|kept|makes?|made|no|free|enough|more|waits? for|is there) room\b`, "capacity, space"},
	{`\broom (for|is|was|on|of|to|goes|went|that)\b`, "capacity, space"},
	{`\bis now to (hold|drain|run)\b`, "intent set to hold"},
	{`\b(is|are|was|were) looked at\b`, "is evaluated, is read"},
	{`\bdials? (of|says?|that)\b|\b(its|the|three|these|a|both) dials?\b`, "condition"},
	{`\bturns? of (a|the|its|their) (dial|condition|node)`, "transition"},
	{`\banew\b`, "again"},
	{`\bat hand\b`, "available, cached"},
	{`(^|[^"])\bwarmth\b`, "locality"},
	{`\bof its own making\b`, "its own failure"},
	{`\bserver's word\b|\bhas the word\b`, "lease"},
	{`\bon the sideline\b|\bput aside\b`, "quarantined"},
	{`: never by that\b`, "no limit"},
	{`\bstands? still\b`, "frozen"},
	{`\b(gives?|given|gave|giving)( \w+)? back\b`, "release, return"},
	{`\bhad better\b`, "should, preferred"},
	{`\bone that did not\b|\bone who\b|\bwho (has|gives|takes|asks|wants|tries|waits|reads)\b`, "name the subject"},
	{`\bsaid besides\b`, "status messages"},
	{`\btold of\b|\btells of\b|\bis told\b|\bare told\b`, "reported, explained"},
	{`\bleaves? it at that\b|\bleft at once\b`, "exits"},
	{`\bsuppos(e|es|ed)\b`, "dry run"},
	{`\bunheeded\b`, "without being tracked"},
	{`\bpassed for long\b`, "starved"},
	{`\bby which who\b`, "name the subject"},
	{`\bas ever\b`, "as before"},
	{`\bof no use\b|\bis of use\b`, "useful, useless"},
	{`\bwould come later\b`, "ranks lower"},
	{`\bcomes? of (a|an|the|its)\b`, "is caused by"},
	{`\bdoes not (tell|say) of\b`, "does not report"},
	{`\bgo(es)? on where it was\b`, "resumes"},
	{`\bwhat (is|was|are) (said|asked|wanted) (of|for|besides)\b`, "name it"},
}

var phrases = func() *regexp.Regexp {
	var all []string
	for _, p := range refusedPhrases {
		all = append(all, "(?:"+p.pattern+")")
	}
	return regexp.MustCompile("(?i)" + strings.Join(all, "|"))
}()

func instead(found string) string {
	for _, p := range refusedPhrases {
		if regexp.MustCompile("(?i)" + p.pattern).MatchString(found) {
			return p.instead
		}
	}
	return ""
}

// pages are the Markdown files of the project, by their path.
func pages(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "packaging/*.md"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			found[name] = string(text)
		}
	}
	return found
}

// TestPagesAreReadable: names in backticks stand on one line, lines of pages have at most 100 columns (a row of a table, code and a line
// that is one address cannot be broken), and none of the refused phrases.
func TestPagesAreReadable(t *testing.T) {
	for name, text := range pages(t) {
		code := false
		for i, line := range strings.Split(text, "\n") {
			if strings.HasPrefix(strings.TrimSpace(line), "```") {
				code = !code
				continue
			}
			if found := phrases.FindString(line); found != "" {
				t.Errorf("%s:%d: %q: %s", name, i+1, found, instead(found))
			}
			whole := code || strings.HasPrefix(line, "    ") || strings.HasPrefix(strings.TrimSpace(line), "|")
			if !whole && strings.Count(line, "`")%2 != 0 {
				t.Errorf("%s:%d: a name in backticks goes on in another line, where no check finds it", name, i+1)
			}
			if n := len([]rune(line)); n > 100 && !whole && strings.Contains(strings.TrimSpace(line), " ") {
				t.Errorf("%s:%d: %d columns", name, i+1, n)
			}
		}
	}
}

// TestTextsAreReadable: what programs print has none of the refused phrases. Texts are the string
// constants with more than one word.
func TestTextsAreReadable(t *testing.T) {
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING || !strings.Contains(lit.Value, " ") {
				return true
			}
			text := lit.Value
			if plain, err := strconv.Unquote(text); err == nil {
				text = plain
			}
			if found := phrases.FindString(text); found != "" {
				t.Errorf("%s: %q: %s", s.fset.Position(lit.Pos()), found, instead(found))
			}
			return true
		})
	}
}
