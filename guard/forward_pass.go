package guard

import (
	"net/http"
	"net/http/httputil"
	"strings"
)

// pass lets a request through that changes nothing downstream: GET, HEAD,
// OPTIONS. It goes to where guarded calls go, and ends when its client leaves.
func (f *Forwarder) pass(w http.ResponseWriter, r *http.Request, o *outbound) {
	p := httputil.ReverseProxy{
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.Out.URL, pr.Out.Host, pr.Out.Header = o.target, "", o.header
		},
		Transport:     f.passing(o.route.AllowPrivate),
		FlushInterval: -1,
		ModifyResponse: func(resp *http.Response) error {
			for name := range resp.Header {
				if strings.HasPrefix(name, "Guard-") || name == "Idempotent-Replayed" {
					delete(resp.Header, name)
				}
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() != nil {
				return // its client has left
			}
			f.log().Warn("a request could not be passed through", "step", o.step, "err", err)
			problem := unreachable(err)
			if problem.Retry == &yes {
				problem.Message = "The downstream could not be asked: " + cut(err.Error())
			}
			problem.write(w)
		},
	}
	p.ServeHTTP(w, r)
}
