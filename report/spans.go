package report

import "time"

// span is a half-open stretch of time in Unix milliseconds.
type span struct{ from, to int64 }

const hourMillis = int64(time.Hour / time.Millisecond)

// parts cuts the span into the whole Unix hours inside it, which hourly sums
// can answer, and the rest before and after them. Any of the three may be empty.
func (s span) parts() (before, hours, after span) {
	first := (s.from + hourMillis - 1) / hourMillis * hourMillis
	last := s.to / hourMillis * hourMillis
	if first >= last {
		return s, span{}, span{}
	}
	return span{from: s.from, to: first}, span{from: first, to: last}, span{from: last, to: s.to}
}

// spans cuts the range from since to until along the dimension: into local
// days, local hours, or not at all. The first and the last may be cut short.
func spans(by Dimension, since, until time.Time) []span {
	if !by.overTime() {
		return []span{{from: since.UnixMilli(), to: until.UnixMilli()}}
	}
	var all []span
	for at := since; at.Before(until); {
		next := nextDay(at)
		if by == ByHour {
			next = nextHour(at)
		}
		if next.After(until) {
			next = until
		}
		all = append(all, span{from: at.UnixMilli(), to: next.UnixMilli()})
		at = next
	}
	return all
}

// timeName names the day or hour that holds t on its local clock.
func (d Dimension) timeName(t time.Time) string {
	if d == ByDay {
		return t.Format(time.DateOnly)
	}
	// The offset tells apart the hours that a change of the clock repeats.
	return t.Format("2006-01-02T15:00Z07:00")
}

// nextHour is the next full hour of the local clock after t, or the change of
// the clock that comes first.
func nextHour(t time.Time) time.Time {
	next := t.Add(time.Hour - pastHour(t))
	if _, change := t.ZoneBounds(); !change.IsZero() && change.Before(next) {
		return change
	}
	return next
}

func pastHour(t time.Time) time.Duration {
	return time.Duration(t.Minute())*time.Minute + time.Duration(t.Second())*time.Second + time.Duration(t.Nanosecond())
}

// nextDay is the start of the local day after t's.
func nextDay(t time.Time) time.Time {
	// A zone that crosses the date line may skip a whole day.
	for day := t.Day() + 1; ; day++ {
		if next := StartOfDay(t.Year(), t.Month(), day, t.Location()); next.After(t) {
			return next
		}
	}
}

// StartOfDay is the first moment of a local day: midnight, the first of two, or
// where the clock skips midnight, the moment it skips to. It starts from noon
// because time.Date leaves open what it makes of a time that does not exist.
func StartOfDay(year int, month time.Month, day int, loc *time.Location) time.Time {
	noon := time.Date(year, month, day, 12, 0, 0, 0, loc)
	midnight := noon.Add(-12 * time.Hour)
	changed, _ := noon.ZoneBounds()
	if changed.IsZero() || midnight.After(changed) {
		return midnight
	}
	before := changed.Add(-1) // on the clock that was in force until the change
	if before.Day() != noon.Day() {
		return changed
	}
	return before.Add(-time.Duration(before.Hour())*time.Hour - pastHour(before))
}
