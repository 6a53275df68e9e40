import Foundation

/// A time of a home, in parts.
struct HomeTime {
    let hour: Int
    let minute: Int
    let day: Int
    let month: Int
    let year: Int
    /// 0: Sunday.
    let weekday: Int

    init(_ now: Int64, _ zone: TimeZone) {
        var calendar = Calendar(identifier: .gregorian)
        calendar.timeZone = zone
        let parts = calendar.dateComponents(
            [.hour, .minute, .day, .month, .year, .weekday], from: Date(timeIntervalSince1970: Double(now) / 1000))
        (hour, minute, day) = (parts.hour ?? 0, parts.minute ?? 0, parts.day ?? 1)
        (month, year, weekday) = (parts.month ?? 1, parts.year ?? 1970, (parts.weekday ?? 1) - 1)
    }

    func isSameDay(as other: HomeTime) -> Bool { (day, month, year) == (other.day, other.month, other.year) }

    /// The same time of the next day.
    func next(_ zone: TimeZone) -> HomeTime {
        var calendar = Calendar(identifier: .gregorian)
        calendar.timeZone = zone
        let parts = DateComponents(year: year, month: month, day: day + 1, hour: 12)
        let date = calendar.date(from: parts) ?? Date(timeIntervalSince1970: 0)
        return HomeTime(Int64(date.timeIntervalSince1970 * 1000), zone)
    }

    /// The minute in two digits.
    var minuteText: String { minute < 10 ? "0\(minute)" : "\(minute)" }
}
