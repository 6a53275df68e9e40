public import Foundation

/// A time without a gap that a device has recorded (IV-C5, docs/recordings.md).
///
/// Its times are those of the device's clock.
public struct Recording: Sendable, Hashable {
    public let start: Date
    public let end: Date
    /// In seconds.
    public var duration: TimeInterval { end.timeIntervalSince(start) }

    /// - Parameter milliseconds: the start and the end, in Unix milliseconds.
    package init(milliseconds: ClosedRange<Int64>) {
        start = Date(milliseconds: milliseconds.lowerBound)
        end = Date(milliseconds: milliseconds.upperBound)
    }
}

extension Date {
    /// - Parameter milliseconds: Unix milliseconds.
    package init(milliseconds: Int64) { self.init(timeIntervalSince1970: Double(milliseconds) / 1000) }

    /// Unix milliseconds; times beyond ±200,000 years are clamped.
    package var milliseconds: Int64 {
        let value = (timeIntervalSince1970 * 1000).rounded()
        guard value.isFinite else { return value < 0 ? -Self.millisecondsMax : Self.millisecondsMax }
        return Int64(min(max(value, Double(-Self.millisecondsMax)), Double(Self.millisecondsMax)))
    }

    private static let millisecondsMax: Int64 = 6_000_000_000_000_000
}
