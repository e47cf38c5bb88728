package main

import (
	"strings"
	"testing"
	"time"
)

func TestDuration(t *testing.T) {
	for text, want := range map[string]struct {
		value   time.Duration
		written string
	}{
		"90s":      {90 * time.Second, "1m30s"},
		"24h":      {24 * time.Hour, "24h"},
		"1d":       {24 * time.Hour, "24h"},
		"30d":      {720 * time.Hour, "30d"},
		"1d12h":    {36 * time.Hour, "36h"},
		"15m":      {15 * time.Minute, "15m"},
		"1h0m5s":   {time.Hour + 5*time.Second, "1h0m5s"},
		"1h30m":    {90 * time.Minute, "1h30m"},
		"250ms":    {250 * time.Millisecond, "250ms"},
		"0s":       {0, "0s"},
		"0":        {0, "0s"},
		"0d":       {0, "0s"},
		"106751d":  {106751 * 24 * time.Hour, "106751d"},
		"1.5h":     {90 * time.Minute, "1h30m"},
		"10m0.5s":  {10*time.Minute + time.Second/2, "10m0.5s"},
		"100h0m0s": {100 * time.Hour, "100h"},
	} {
		var got, again Duration
		if err := got.UnmarshalText([]byte(text)); err != nil || time.Duration(got) != want.value {
			t.Errorf("%q is read as %v, %v; want %v", text, time.Duration(got), err, want.value)
		}
		if got.String() != want.written {
			t.Errorf("%q is written as %q, want %q", text, got, want.written)
		}
		if err := again.UnmarshalText([]byte(got.String())); err != nil || again != got {
			t.Errorf("%q is written as %q, which is read as %v, %v", text, got, again, err)
		}
	}
	for text, want := range map[string]string{
		"":               "is no duration",
		"90":             "has no unit; write 90s",
		"1.5":            "has no unit",
		"-5s":            "is negative",
		"-0s":            "is negative",
		"5 minutes":      "is no duration",
		"1.5d":           "is no duration",
		"d":              "is no duration",
		"1h1d":           "is no duration",
		"106752d":        "is too long",
		"106751d24h":     "is too long",
		"99999999999d":   "is too long",
		"NaN":            "is no duration",
		"9999999999999h": "is no duration",
	} {
		var d Duration
		if err := d.UnmarshalText([]byte(text)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: error is %v, want %q", text, err, want)
		}
	}
}

func TestBytes(t *testing.T) {
	for text, want := range map[string]struct {
		value   Bytes
		written string
	}{
		"32MiB":      {32 << 20, "32MiB"},
		"1GiB":       {1 << 30, "1GiB"},
		"64KB":       {64_000, "64KB"},
		"1024KiB":    {1 << 20, "1MiB"},
		"2TB":        {2e12, "2TB"},
		"32mib":      {32 << 20, "32MiB"},
		"32 MiB":     {32 << 20, "32MiB"},
		"0":          {0, "0"},
		"0MiB":       {0, "0"},
		"1000":       {1000, "1KB"},
		"17B":        {17, "17B"},
		"8388607TiB": {8388607 << 40, "8388607TiB"},
	} {
		var got Bytes
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want.value || got.String() != want.written {
			t.Errorf("%q is read as %d, %v and written as %q; want %d, %q", text, int64(got), err, got, want.value, want.written)
		}
	}
	for text, want := range map[string]string{
		"":                     "is no size",
		"-1MiB":                "is negative",
		"1.5GiB":               "is no size",
		"MiB":                  "is no size",
		"32Mb/s":               "is no size",
		"32XB":                 "has an unknown unit",
		"8388608TiB":           "is too large",
		"99999999999999999999": "is too large",
	} {
		var b Bytes
		if err := b.UnmarshalText([]byte(text)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: error is %v, want %q", text, err, want)
		}
	}
}

func TestParseCount(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "8000": 8000, "2_000_000": 2_000_000, "9223372036854775807": 9223372036854775807} {
		if got, err := parseCount(text); err != nil || got != want {
			t.Errorf("%q is %d, %v; want %d", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"-1": "is negative", "-1.5": "is negative", "1.5": "is no whole number", "1e3": "is no whole number",
		"1e400": "is no whole number", ".nan": "is no whole number", "-.inf": "is no whole number", "NaN": "is no whole number",
		"": "is no whole number", "010": "is no whole number", "0x10": "is no whole number", "8k": "is no whole number",
		"9223372036854775808": "is too large",
	} {
		if got, err := parseCount(text); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q is %d, %v; want the error %q", text, got, err, want)
		}
	}
}

func TestParseFlagAt(t *testing.T) {
	const most = 9223372036854775807
	for _, test := range []struct {
		text  string
		limit int64
		want  int64
	}{
		{"80%", 2_000_000, 1_600_000}, {"80%", 1, 1}, {"33%", 10, 4}, {"100%", most, most},
		{"1%", most, 92233720368547759}, {"1500", 2000, 1500}, {"2000", 2000, 2000}, {"80%", 0, 0},
	} {
		if got, err := parseFlagAt(test.text, test.limit); err != nil || got != test.want {
			t.Errorf("%s of %d is %d, %v; want %d", test.text, test.limit, got, err, test.want)
		}
	}
	for text, want := range map[string]string{
		"0": "would warn from the start", "0%": "would warn from the start", "101%": "is above 100%",
		"2001": "is above the limit of 2000", "80.5%": "is no whole percentage", "%": "is no whole percentage",
		"-1": "is negative", "most": "is no whole number",
	} {
		if got, err := parseFlagAt(text, 2000); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q is %d, %v; want the error %q", text, got, err, want)
		}
	}
}
