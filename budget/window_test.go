package budget_test

import (
	"testing"
	"time"
	_ "time/tzdata" // the tests must not depend on the machine's zones

	"llmproxy/budget"
)

func zone(t testing.TB, name string) *time.Location {
	t.Helper()
	loc, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return loc
}

func moment(t testing.TB, rfc3339 string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, rfc3339)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func TestWindow(t *testing.T) {
	for _, test := range []struct {
		name, zone string
		per        budget.Period
		now        string
		start, end string
	}{
		{"a minute", "UTC", budget.PerMinute, "2026-12-01T10:20:59.999Z", "2026-12-01T10:20:00Z", "2026-12-01T10:21:00Z"},
		{"the next minute", "UTC", budget.PerMinute, "2026-12-01T10:21:00Z", "2026-12-01T10:21:00Z", "2026-12-01T10:22:00Z"},
		{"an hour", "Europe/Berlin", budget.PerHour, "2026-12-01T10:20:00+01:00", "2026-12-01T10:00:00+01:00", "2026-12-01T11:00:00+01:00"},
		{"an hour of a zone 45 minutes off", "Asia/Kathmandu", budget.PerHour, "2026-12-01T10:20:00+05:45", "2026-12-01T10:00:00+05:45", "2026-12-01T11:00:00+05:45"},
		{"the first of two hours named 2", "Europe/Berlin", budget.PerHour, "2026-10-25T02:30:00+02:00", "2026-10-25T02:00:00+02:00", "2026-10-25T02:00:00+01:00"},
		{"the second", "Europe/Berlin", budget.PerHour, "2026-10-25T02:30:00+01:00", "2026-10-25T02:00:00+01:00", "2026-10-25T03:00:00+01:00"},
		{"an hour cut by a shift of 30 minutes", "Australia/Lord_Howe", budget.PerHour, "2026-10-04T02:45:00+11:00", "2026-10-04T02:30:00+11:00", "2026-10-04T03:00:00+11:00"},
		{"an hour before 1970", "UTC", budget.PerHour, "1969-12-31T23:30:00Z", "1969-12-31T23:00:00Z", "1970-01-01T00:00:00Z"},

		{"the last moment of a day", "Europe/Berlin", budget.PerDay, "2026-12-01T23:59:59.999+01:00", "2026-12-01T00:00:00+01:00", "2026-12-02T00:00:00+01:00"},
		{"the first moment of a day", "Europe/Berlin", budget.PerDay, "2026-12-02T00:00:00+01:00", "2026-12-02T00:00:00+01:00", "2026-12-03T00:00:00+01:00"},
		{"a day is local, not UTC's", "America/New_York", budget.PerDay, "2026-07-02T03:00:00Z", "2026-07-01T00:00:00-04:00", "2026-07-02T00:00:00-04:00"},
		{"23 hours", "Europe/Berlin", budget.PerDay, "2026-03-29T12:00:00+02:00", "2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00"},
		{"25 hours", "Europe/Berlin", budget.PerDay, "2026-10-25T01:00:00+02:00", "2026-10-25T00:00:00+02:00", "2026-10-26T00:00:00+01:00"},
		{"23 hours in New York", "America/New_York", budget.PerDay, "2026-03-08T12:00:00-04:00", "2026-03-08T00:00:00-05:00", "2026-03-09T00:00:00-04:00"},
		{"25 hours in New York", "America/New_York", budget.PerDay, "2026-11-01T23:59:59-05:00", "2026-11-01T00:00:00-04:00", "2026-11-02T00:00:00-05:00"},
		{"no midnight", "America/Sao_Paulo", budget.PerDay, "2017-10-15T01:00:00-02:00", "2017-10-15T01:00:00-02:00", "2017-10-16T00:00:00-02:00"},
		{"the day before no midnight", "America/Sao_Paulo", budget.PerDay, "2017-10-14T23:59:59-03:00", "2017-10-14T00:00:00-03:00", "2017-10-15T01:00:00-02:00"},
		{"no midnight east of Greenwich", "Asia/Beirut", budget.PerDay, "2022-03-27T01:00:00+03:00", "2022-03-27T01:00:00+03:00", "2022-03-28T00:00:00+03:00"},
		{"23:00 twice", "America/Sao_Paulo", budget.PerDay, "2018-02-17T23:30:00-03:00", "2018-02-17T00:00:00-02:00", "2018-02-18T00:00:00-03:00"},
		{"midnight twice west", "America/Havana", budget.PerDay, "2025-11-02T00:30:00-05:00", "2025-11-02T00:00:00-04:00", "2025-11-03T00:00:00-05:00"},
		{"midnight twice east", "Asia/Amman", budget.PerDay, "2021-10-29T00:30:00+03:00", "2021-10-29T00:00:00+03:00", "2021-10-30T00:00:00+02:00"},
		{"the old date for an hour more", "America/St_Johns", budget.PerDay, "2010-11-06T23:30:00-03:30", "2010-11-07T00:00:00-02:30", "2010-11-08T00:00:00-03:30"},
		{"a date that never was", "Pacific/Apia", budget.PerDay, "2011-12-31T08:00:00+14:00", "2011-12-31T00:00:00+14:00", "2012-01-01T00:00:00+14:00"},
		{"before it", "Pacific/Apia", budget.PerDay, "2011-12-29T08:00:00-10:00", "2011-12-29T00:00:00-10:00", "2011-12-31T00:00:00+14:00"},

		{"a week ends on Sunday", "UTC", budget.PerWeek, "2026-12-06T23:59:59Z", "2026-11-30T00:00:00Z", "2026-12-07T00:00:00Z"},
		{"a week begins on Monday", "UTC", budget.PerWeek, "2026-12-07T00:00:00Z", "2026-12-07T00:00:00Z", "2026-12-14T00:00:00Z"},
		{"a week of two years", "UTC", budget.PerWeek, "2027-01-01T00:00:00Z", "2026-12-28T00:00:00Z", "2027-01-04T00:00:00Z"},
		{"a week of 169 hours", "Europe/Berlin", budget.PerWeek, "2026-10-25T02:30:00+01:00", "2026-10-19T00:00:00+02:00", "2026-10-26T00:00:00+01:00"},

		{"a month", "Europe/Berlin", budget.PerMonth, "2026-03-31T23:59:59+02:00", "2026-03-01T00:00:00+01:00", "2026-04-01T00:00:00+02:00"},
		{"February", "UTC", budget.PerMonth, "2026-02-28T23:59:59Z", "2026-02-01T00:00:00Z", "2026-03-01T00:00:00Z"},
		{"February of a leap year", "UTC", budget.PerMonth, "2028-02-29T12:00:00Z", "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"},
		{"December", "UTC", budget.PerMonth, "2026-12-31T12:00:00Z", "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"},
	} {
		t.Run(test.name, func(t *testing.T) {
			loc := zone(t, test.zone)
			start, end := budget.Window(test.per, moment(t, test.now), loc)
			if got := start.Format(time.RFC3339); got != test.start {
				t.Errorf("starts %s, want %s", got, test.start)
			}
			if got := end.Format(time.RFC3339); got != test.end {
				t.Errorf("ends %s, want %s", got, test.end)
			}
		})
	}
	for _, per := range []budget.Period{budget.PerCall, budget.PerRun, budget.PerTotal} {
		if start, end := budget.Window(per, time.Now(), time.UTC); !start.IsZero() || !end.IsZero() {
			t.Errorf("a %s has the span %v to %v, want none", per, start, end)
		}
	}
}

// Whatever clocks do, each moment is in one window and windows leave no gap.
func TestWindowsDivideTime(t *testing.T) {
	for _, span := range []struct{ zone, from, to string }{
		{"Europe/Berlin", "2025-12-20T00:00:00Z", "2027-01-10T00:00:00Z"},
		{"America/New_York", "2025-12-20T00:00:00Z", "2027-01-10T00:00:00Z"},
		{"America/Sao_Paulo", "2017-09-01T00:00:00Z", "2018-03-20T00:00:00Z"},
		{"Asia/Beirut", "2022-03-01T00:00:00Z", "2022-12-01T00:00:00Z"},
		{"Asia/Amman", "2021-03-01T00:00:00Z", "2021-12-01T00:00:00Z"},
		{"America/Havana", "2025-03-01T00:00:00Z", "2025-12-01T00:00:00Z"},
		{"America/St_Johns", "2010-03-01T00:00:00Z", "2010-12-01T00:00:00Z"},
		{"Australia/Lord_Howe", "2026-03-01T00:00:00Z", "2026-12-01T00:00:00Z"},
		{"Pacific/Apia", "2011-12-01T00:00:00Z", "2012-02-01T00:00:00Z"},
	} {
		t.Run(span.zone, func(t *testing.T) {
			loc, to := zone(t, span.zone), moment(t, span.to)
			for _, per := range []budget.Period{budget.PerHour, budget.PerDay, budget.PerWeek, budget.PerMonth} {
				start, end := budget.Window(per, moment(t, span.from), loc)
				for now := start; now.Before(to); now = now.Add(10 * time.Minute) {
					if !now.Before(end) {
						start = end
						_, end = budget.Window(per, start, loc)
					}
					s, e := budget.Window(per, now, loc)
					if !s.Equal(start) || !e.Equal(end) || now.Before(s) || !now.Before(e) {
						t.Fatalf("per %s: %v is in [%v, %v), its neighbours say [%v, %v)", per, now, s, e, start, end)
					}
				}
			}
		})
	}
}
