/// The forms of times in S3: of signatures, of lists and of HTTP. Pure.
package enum S3Time {
    private static let months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]

    /// `20130524T000000Z`, of Unix seconds.
    package static func signed(_ seconds: Int64) -> String {
        let days = seconds.floored(by: 86_400)
        let (year, month, day) = date(days)
        let rest = seconds - days * 86_400
        return digits(year, 4) + digits(month, 2) + digits(day, 2) + "T" + digits(rest / 3600, 2)
            + digits(rest / 60 % 60, 2) + digits(rest % 60, 2) + "Z"
    }

    private static func digits(_ number: Int64, _ count: Int) -> String {
        let text = String(number)
        return String(repeating: "0", count: max(0, count - text.count)) + text
    }

    /// Unix milliseconds of `2009-10-12T17:50:30.000Z`; nil if it is no such time.
    package static func milliseconds(list text: String) -> Int64? {
        let match = text.wholeMatch(of: #/(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{1,3})\d*)?(?:Z|\+00:00)/#)
        guard let match, let year = Int64(match.1), let month = Int64(match.2), let day = Int64(match.3),
            let seconds = seconds(match.4, match.5, match.6)
        else { return nil }
        let fraction = match.7.map { String($0) + String(repeating: "0", count: 3 - $0.count) } ?? "0"
        return milliseconds(year, month, day, seconds).map { $0 + (Int64(fraction) ?? 0) }
    }

    /// Unix milliseconds of `Wed, 12 Oct 2009 17:50:00 GMT` (RFC 9110 §5.6.7); nil if it is no such time.
    package static func milliseconds(header text: String) -> Int64? {
        let match = text.wholeMatch(of: #/\w{3}, (\d\d) (\w{3}) (\d{4}) (\d\d):(\d\d):(\d\d) (?:GMT|UTC)/#)
        guard let match, let day = Int64(match.1), let month = months.firstIndex(where: { $0 == match.2 }),
            let year = Int64(match.3), let seconds = seconds(match.4, match.5, match.6)
        else { return nil }
        return milliseconds(year, Int64(month) + 1, day, seconds)
    }

    private static func seconds(_ hour: Substring, _ minute: Substring, _ second: Substring) -> Int64? {
        guard let hour = Int64(hour), let minute = Int64(minute), let second = Int64(second), hour < 24, minute < 60,
            second <= 60
        else { return nil }
        return hour * 3600 + minute * 60 + second
    }

    private static func milliseconds(_ year: Int64, _ month: Int64, _ day: Int64, _ seconds: Int64) -> Int64? {
        guard (1...12).contains(month), (1...31).contains(day) else { return nil }
        return (days(year, month, day) * 86_400 + seconds) * 1000
    }

    // The Gregorian calendar in days since 1970-01-01: years begin in March, and 400 of them have 146,097 days.

    private static func days(_ year: Int64, _ month: Int64, _ day: Int64) -> Int64 {
        let year = month <= 2 ? year - 1 : year
        let era = year.floored(by: 400)
        let ofEra = year - era * 400
        let ofYear = (153 * ((month + 9) % 12) + 2) / 5 + day - 1
        return era * 146_097 + ofEra * 365 + ofEra / 4 - ofEra / 100 + ofYear - 719_468
    }

    private static func date(_ days: Int64) -> (year: Int64, month: Int64, day: Int64) {
        let shifted = days + 719_468
        let era = shifted.floored(by: 146_097)
        let ofEra = shifted - era * 146_097
        let yearOfEra = (ofEra - ofEra / 1460 + ofEra / 36_524 - ofEra / 146_096) / 365
        let ofYear = ofEra - (365 * yearOfEra + yearOfEra / 4 - yearOfEra / 100)
        let index = (5 * ofYear + 2) / 153
        let month = index < 10 ? index + 3 : index - 9
        let year = yearOfEra + era * 400 + (month <= 2 ? 1 : 0)
        return (year, month, ofYear - (153 * index + 2) / 5 + 1)
    }
}

extension Int64 {
    /// The quotient, rounded down.
    fileprivate func floored(by divisor: Int64) -> Int64 {
        let (quotient, remainder) = quotientAndRemainder(dividingBy: divisor)
        return remainder < 0 ? quotient - 1 : quotient
    }
}
