package httpapi

import (
	"embed"
	"io/fs"
	"net/http"
	"path"
)

// The page that shows the description: plain files, nothing from elsewhere.
//
//go:embed docs
var docsFiles embed.FS

// docsPolicy lets the page load its own files and the description, and nothing else.
const docsPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// docsRoutes adds the description and the page that shows it. It comes after all other routes.
// These routes go to the mux directly: they are not operations of the API, and the description does
// not list them.
func (a *API) docsRoutes() error {
	if err := a.finishDescription(); err != nil {
		return err
	}
	a.cfg.Door.Mux.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/openapi+json")
		_, _ = w.Write(a.openapi)
	})
	a.cfg.Door.Mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/docs", http.StatusFound)
	})
	for name, kind := range map[string]string{
		"docs.html": "text/html; charset=utf-8",
		"docs.js":   "text/javascript; charset=utf-8",
		"docs.css":  "text/css; charset=utf-8",
	} {
		content, err := fs.ReadFile(docsFiles, path.Join("docs", name))
		if err != nil {
			return err
		}
		at := "GET /docs/" + name
		if name == "docs.html" {
			at = "GET /docs"
		}
		a.cfg.Door.Mux.HandleFunc(at, func(w http.ResponseWriter, _ *http.Request) {
			h := w.Header()
			h.Set("Content-Type", kind)
			h.Set("Content-Security-Policy", docsPolicy)
			h.Set("Referrer-Policy", "no-referrer")
			_, _ = w.Write(content)
		})
	}
	return nil
}
