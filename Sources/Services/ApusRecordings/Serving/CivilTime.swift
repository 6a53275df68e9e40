/// A time of day on a date of the proleptic Gregorian calendar.
///
/// Pure.
package struct CivilTime: Sendable, Hashable {
    package var year: Int64
    package var month: Int64
    package var day: Int64
    /// Of the day.
    package var second: Int64

    /// - Parameter seconds: Unix seconds, to which the offset of the zone is added already.
    package init(seconds: Int64) {
        let days = seconds.floored(by: 86_400)
        second = seconds - days * 86_400
        // Days of a year that begins with March, in eras of 400 years: leap days come last.
        let shifted = days + 719_468
        let era = shifted.floored(by: 146_097)
        let dayOfEra = shifted - era * 146_097
        let yearOfEra = (dayOfEra - dayOfEra / 1460 + dayOfEra / 36_524 - dayOfEra / 146_096) / 365
        let dayOfYear = dayOfEra - (365 * yearOfEra + yearOfEra / 4 - yearOfEra / 100)
        let monthFromMarch = (5 * dayOfYear + 2) / 153
        day = dayOfYear - (153 * monthFromMarch + 2) / 5 + 1
        month = monthFromMarch < 10 ? monthFromMarch + 3 : monthFromMarch - 9
        year = yearOfEra + era * 400 + (month <= 2 ? 1 : 0)
    }

    /// `yyyyMMddHHmmss`.
    package var digits: String {
        Self.pad(year, 4) + Self.pad(month, 2) + Self.pad(day, 2) + Self.pad(second / 3600, 2)
            + Self.pad(second / 60 % 60, 2) + Self.pad(second % 60, 2)
    }

    /// A time of UTC as ISO 8601 has it, with milliseconds.
    ///
    /// - Parameter microseconds: since 1970.
    package static func utc(microseconds: Int64) -> String {
        let milliseconds = microseconds.floored(by: 1000)
        let time = Self(seconds: milliseconds.floored(by: 1000))
        let fraction = milliseconds - milliseconds.floored(by: 1000) * 1000
        return "\(pad(time.year, 4))-\(pad(time.month, 2))-\(pad(time.day, 2))T\(pad(time.second / 3600, 2)):"
            + "\(pad(time.second / 60 % 60, 2)):\(pad(time.second % 60, 2)).\(pad(fraction, 3))Z"
    }

    private static func pad(_ number: Int64, _ count: Int) -> String {
        let text = "\(number)"
        return String(repeating: "0", count: max(0, count - text.count)) + text
    }
}
