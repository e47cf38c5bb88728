package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"llmproxy/guard"
)

// guardCommand runs "llmproxy guard ARGS" in this process.
func guardCommand(t *testing.T, env []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), append([]string{"guard"}, args...), env, &out, &errs)
	return code, out.String(), errs.String()
}

// TestGuardKeyMakesTheGoldenKeys: the command makes the keys that the API and
// the documented programs in other languages make.
func TestGuardKeyMakesTheGoldenKeys(t *testing.T) {
	text, err := os.ReadFile("../../testdata/guard/keys.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors []struct {
		Name, Tenant, Namespace, Step, Explicit, Occurrence, Secret, Preimage, Key string
		Input                                                                      *string
		Select                                                                     []string
	}
	if err := json.Unmarshal(text, &vectors); err != nil {
		t.Fatal(err)
	}
	made := 0
	for _, v := range vectors {
		if v.Secret != "" {
			continue // no setting says it; guard tests these two
		}
		made++
		args := []string{"key", "--format", "json", "--tenant", v.Tenant, "--step", v.Step}
		if v.Namespace != "" {
			args = append(args, "--namespace", v.Namespace)
		}
		if v.Input != nil {
			args = append(args, "--input", *v.Input)
		}
		if v.Explicit != "" {
			args = append(args, "--key", v.Explicit)
		}
		if v.Occurrence != "" {
			args = append(args, "--occurrence", v.Occurrence)
		}
		for _, pointer := range v.Select {
			args = append(args, "--select", pointer)
		}
		code, stdout, stderr := guardCommand(t, nil, args...)
		var got guard.Preimage
		if err := json.Unmarshal([]byte(stdout), &got); code != 0 || err != nil {
			t.Errorf("%s: exit code %d, %v, %s", v.Name, code, err, stderr)
			continue
		}
		if got.Key != v.Key || got.Preimage != v.Preimage {
			t.Errorf("%s: key %s of %s, want %s of %s", v.Name, got.Key, got.Preimage, v.Key, v.Preimage)
		}
	}
	if made < 30 {
		t.Errorf("only %d vectors were made", made)
	}
}

// TestSameUnitThroughServerAndFile: a key's tenant: and --tenant name the same
// work, whichever way it comes.
func TestSameUnitThroughServerAndFile(t *testing.T) {
	r := startServer(t, fmt.Sprintf(`keys:
- {name: user, hash: %q, tenant: sales, scopes: [guard]}
- {name: admin, hash: %q, tenant: sales, scopes: [admin]}
- {name: other, hash: %q, tenant: else, scopes: [guard]}
- {name: model, hash: %q, tenant: sales, scopes: [llm]}`, hashKey("lp_user"), hashKey("lp_admin"), hashKey("lp_other"), hashKey("lp_model")))
	effects := filepath.Join(t.TempDir(), "effects")
	act := []string{"--step", "send", "--key", "order 17", "--resource-id-from", "regex:msg_.", "--", "sh", "-c", "echo x >> " + effects + "; echo msg_1"}
	through := func(key string) (code int, stdout, stderr string) {
		return guardCommand(t, []string{"LLMPROXY_KEY=" + key, "PATH=" + os.Getenv("PATH")}, append([]string{"run", "--server", r.base}, act...)...)
	}
	if code, stdout, stderr := through("lp_user"); code != 0 || stdout != "msg_1\n" || stderr != "" {
		t.Fatalf("through the server: %d, %q, %q", code, stdout, stderr)
	}
	onFile := append([]string{"run", "--config", r.config, "--tenant", "sales"}, act...)
	if code, stdout, stderr := guardCommand(t, nil, onFile...); code != 0 || stdout != "msg_1\n" || !strings.Contains(stderr, "resource msg_1; not run again") {
		t.Errorf("on the file: %d, %q, %q", code, stdout, stderr)
	}
	req, err := http.NewRequest(http.MethodPost, r.base+"/guard/v1/begin", strings.NewReader(`{"step":"send","key":"order 17"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer lp_user")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var e guard.Effect
	if err := json.NewDecoder(res.Body).Decode(&e); err != nil || e.Decision != guard.Replay || e.ResourceID != "msg_1" {
		t.Errorf("over the API: %+v, %v", e, err)
	}
	if code, stdout, _ := through("lp_other"); code != 0 || stdout != "msg_1\n" {
		t.Errorf("another tenant: %d, %q", code, stdout)
	}
	if acted := lines(t, effects); acted != 2 {
		t.Errorf("two tenants made %d effects", acted)
	}
	for _, key := range []string{"lp_model", "lp_nobody", ""} {
		if code, _, stderr := through(key); code != exitUnavailable || stderr == "" {
			t.Errorf("with the key %q: %d, %q", key, code, stderr)
		}
	}

	beside := func(key string, args ...string) (int, string, string) {
		return guardCommand(t, []string{"OURS=" + key}, append(args, "--server", r.base, "--server-key-env", "OURS")...)
	}
	if code, stdout, _ := beside("lp_admin", "list"); code != 0 || !strings.Contains(stdout, "send") {
		t.Errorf("list: %d, %q", code, stdout)
	}
	if code, stdout, _ := beside("lp_user", "status", e.Key); code != 0 || !strings.Contains(stdout, "sales/default") {
		t.Errorf("status: %d, %q", code, stdout)
	}
	if code, _, stderr := beside("lp_user", "list"); code != exitUnavailable || !strings.Contains(stderr, "admin") {
		t.Errorf("list by a user: %d, %q", code, stderr)
	}
	if code, stdout, stderr := beside("lp_admin", "resolve", e.Key[:9], "--outcome", "reopen", "--reason", "test", "--yes"); code != 0 || !strings.Contains(stdout, "failed") {
		t.Errorf("resolve: %d, %q, %q", code, stdout, stderr)
	}
}

// lines counts the lines of a file; one that is not there has none.
func lines(t *testing.T, file string) int {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return bytes.Count(text, []byte("\n"))
}

func TestHeartbeat(t *testing.T) {
	lost := &guard.Problem{Status: http.StatusConflict, Code: string(guard.LeaseLost)}
	down := errors.New("no answer")
	newBeat := func(extend func(context.Context) (time.Duration, error)) *heartbeat {
		return &heartbeat{lease: time.Minute, until: time.Now().Add(time.Minute), extend: extend}
	}
	t.Run("for hours", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			last, longest, n := time.Now(), time.Duration(0), 0
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Hour+time.Second)
			defer cancel()
			err := newBeat(func(context.Context) (time.Duration, error) {
				longest, last, n = max(longest, time.Since(last)), time.Now(), n+1
				return time.Minute, nil
			}).run(ctx)
			if err != nil || longest != 20*time.Second || n != 5*60*3 {
				t.Errorf("%v after %d extensions at most %s apart", err, n, longest)
			}
		})
	})
	t.Run("lost", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			err := newBeat(func(context.Context) (time.Duration, error) { return 0, lost }).run(t.Context())
			if !errors.Is(err, lost) || time.Since(began) != 20*time.Second {
				t.Errorf("%v after %s", err, time.Since(began))
			}
		})
	})
	t.Run("a guard that is away for less than the lease", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			err := newBeat(func(context.Context) (time.Duration, error) {
				if away := time.Since(began); away > 30*time.Second && away < 75*time.Second {
					return 0, down
				}
				return time.Minute, nil
			}).run(ctx)
			if err != nil {
				t.Errorf("it gives up: %v", err)
			}
		})
	})
	t.Run("a guard that stays away", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			err := newBeat(func(ctx context.Context) (time.Duration, error) {
				<-ctx.Done() // as a request that hangs
				return 0, fmt.Errorf("%w: %w", down, ctx.Err())
			}).run(t.Context())
			if !errors.Is(err, down) || time.Since(began) != time.Minute {
				t.Errorf("%v after %s; the lease was over after 1m", err, time.Since(began))
			}
		})
	})
	t.Run("at the end of the longest lease", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			began, n := time.Now(), 0
			err := newBeat(func(context.Context) (time.Duration, error) {
				n++
				left := 2*time.Minute - time.Since(began)
				if left <= 0 {
					return 0, lost
				}
				return min(left, time.Minute), nil
			}).run(t.Context())
			if !errors.Is(err, lost) || n > 40 {
				t.Errorf("%v after %d extensions", err, n)
			}
		})
	})
}

// TestAnEndThatCannotBeStored is never told as a success: the next run will be
// told that nobody knows.
func TestAnEndThatCannotBeStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		r := &guardRun{keep: true, stderr: io.Discard, client: &guard.Client{URL: "http://guard.test", HTTP: &http.Client{Transport: roundTrip(func(*http.Request) (*http.Response, error) {
			tries++
			return nil, errors.New("no answer")
		})}}}
		claim := guard.Claim{Key: strings.Repeat("0", 64), Token: "token"}
		began := time.Now()
		err := r.settle(t.Context(), claim, end{started: true, outcome: guard.OutcomeDone, words: "exit code 0", complete: true})
		exit, coded := errors.AsType[*exitError](err)
		if !coded || exit.code != exitUndecided || !strings.Contains(err.Error(), "that was not stored") {
			t.Errorf("%v", err)
		}
		if waited := time.Since(began); tries < 5 || waited < 20*time.Second || waited > reportFor {
			t.Errorf("%d tries in %s", tries, waited)
		}
		err = r.settle(t.Context(), claim, notStarted(os.ErrNotExist))
		if exit, coded = errors.AsType[*exitError](err); !coded || exit.code != 127 {
			t.Errorf("a command that was not started: %v", err)
		}
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
