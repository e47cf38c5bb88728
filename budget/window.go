package budget

import "time"

// Window is the span [start, end) around now for a period in a time zone. It
// depends on nothing else, and the windows of one period follow each other
// without gap or overlap: a day is from the first moment whose date in loc it
// is, whether that day has 23, 24 or 25 hours and whether it has a midnight.
// PerCall, PerRun and PerTotal have no span in time: both ends are zero.
func Window(per Period, now time.Time, loc *time.Location) (start, end time.Time) {
	now = now.In(loc)
	switch per {
	case PerMinute:
		return onTheClock(now, time.Minute)
	case PerHour:
		return onTheClock(now, time.Hour)
	case PerDay, PerWeek, PerMonth:
		year, month, day := now.Date()
		start, end = onTheCalendar(per, year, month, day, loc)
		if !now.Before(end) {
			// Clocks that went back over midnight show the old date once more.
			start, end = onTheCalendar(per, year, month, day+1, loc)
		}
	}
	return start, end
}

// onTheClock is the minute or hour around now as local clocks show it. Where a
// zone shifts by half an hour, the hour is cut at the shift.
func onTheClock(now time.Time, length time.Duration) (start, end time.Time) {
	_, offset := now.Zone()
	seconds := int64(length / time.Second)
	past := (now.Unix() + int64(offset)) % seconds
	if past < 0 {
		past += seconds // before 1970
	}
	start = time.Unix(now.Unix()-past, 0).In(now.Location())
	end = start.Add(length)
	since, until := now.ZoneBounds()
	if start.Before(since) {
		start = since
	}
	if !until.IsZero() && end.After(until) {
		end = until
	}
	return start, end
}

// onTheCalendar is the day, ISO week or month that holds a date.
func onTheCalendar(per Period, year int, month time.Month, day int, loc *time.Location) (start, end time.Time) {
	date := time.Date(year, month, day, 0, 0, 0, 0, time.UTC) // carries day 32 over
	next := date.AddDate(0, 0, 1)
	switch per {
	case PerWeek:
		date = date.AddDate(0, 0, -(int(date.Weekday())+6)%7)
		next = date.AddDate(0, 0, 7)
	case PerMonth:
		date = date.AddDate(0, 0, 1-date.Day())
		next = date.AddDate(0, 1, 0)
	}
	return dawn(date, loc), dawn(next, loc)
}

// dawn is the first moment at which clocks in loc show the date (given as its
// midnight in UTC) or a later one. time.Date cannot tell: where midnight comes
// twice or never, the moment it returns is unspecified.
func dawn(date time.Time, loc *time.Location) time.Time {
	// No zone is 36 hours off: this is before it. From here, zone by zone.
	t := date.Add(-36 * time.Hour).In(loc)
	for {
		_, offset := t.Zone()
		midnight := date.Add(-time.Duration(offset) * time.Second).In(loc)
		_, until := t.ZoneBounds()
		if until.IsZero() || midnight.Before(until) {
			if midnight.Before(t) {
				return t // skipped: clocks went from before midnight to after it
			}
			return midnight
		}
		t = until
	}
}
