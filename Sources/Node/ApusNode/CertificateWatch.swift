package import ApusCore
import ApusNodeConfiguration
import CoreMetrics
package import Foundation
package import Logging
import ServiceLifecycle
import Synchronization

extension NodeConditions.Kind {
    /// A certificate expires soon.
    package static let certificateExpiring = Self("certificate_expiring", isUnhealthy: false)
    /// A certificate has expired.
    package static let certificateExpired = Self("certificate_expired", isUnhealthy: true)
}

/// When a certificate of this node expires.
package struct CertificateExpiry: Sendable, Equatable {
    /// The label of the metric: `node`, `authority`, `clients`, `http`, `relay` or `etcd`.
    package var name: String
    package var file: String
    package var notAfter: Date
    /// True if this node presents it to others who connect: then it is not accepted once it has expired.
    package var isServed: Bool

    package init(name: String, file: String, notAfter: Date, isServed: Bool) {
        (self.name, self.file, self.notAfter, self.isServed) = (name, file, notAfter, isServed)
    }

    func daysLeft(at now: Date) -> Double { notAfter.timeIntervalSince(now) / 86_400 }
}

/// Watches when this node's certificates expire: a gauge with the days that are left, a condition from
/// `tls.expiry_warning` on, and another one, with an error in the log, when a certificate has expired.
///
/// Isolation: any thread.
package final class CertificateWatch: Service {
    /// The interval between checks.
    static let interval = Duration.seconds(60)

    private let warning: Duration
    private let conditions: NodeConditions
    private let log: Logger
    private let expiries: Mutex<[CertificateExpiry]>
    private let isExpired = Mutex(false)

    package init(_ expiries: [CertificateExpiry], warning: Duration, conditions: NodeConditions, log: Logger) {
        (self.warning, self.conditions, self.log) = (warning, conditions, log)
        self.expiries = Mutex(expiries)
    }

    /// Watches the certificates of a configuration. Throws 10022 if one cannot be read.
    convenience init(_ configuration: NodeConfiguration, _ conditions: NodeConditions, log: Logger) throws(ApusError) {
        self.init(
            try configuration.certificateExpiries(), warning: configuration.expiryWarning, conditions: conditions,
            log: log)
    }

    /// Watches other certificates from now on.
    package func use(_ new: [CertificateExpiry]) {
        expiries.withLock { $0 = new }
        check(at: Date())
    }

    package func run() async throws {
        await cancelWhenGracefulShutdown {
            repeat { self.check(at: Date()) } while (try? await Task.sleep(for: Self.interval)) != nil
        }
    }

    /// Raises and clears the conditions.
    package func check(at now: Date) {
        let expiries = expiries.withLock { $0 }
        for expiry in expiries {
            Gauge(label: "apus_certificate_days_left", dimensions: [("certificate", expiry.name)])
                .record(expiry.daysLeft(at: now))
        }
        let expired = expiries.filter { $0.notAfter <= now }
        let days = warning.milliseconds / 86_400_000
        let expiring = expiries.filter { $0.notAfter > now && $0.daysLeft(at: now) < days }
        conditions.set(.certificateExpiring, Self.text(expiring, now))
        let reason = Self.text(expired, now)
        conditions.set(.certificateExpired, reason)
        let isNew = isExpired.withLock { isExpired in
            defer { isExpired = reason != nil }
            return reason != nil && !isExpired
        }
        if isNew, let reason {
            log.error("A certificate of this node has expired", metadata: [LogKey.reason: "\(reason)"])
        }
    }

    /// Nil if there are none.
    private static func text(_ expiries: [CertificateExpiry], _ now: Date) -> String? {
        // A file that is used for several purposes is named once.
        var files: [String] = []
        let list = expiries.compactMap { expiry -> String? in
            guard !files.contains(expiry.file) else { return nil }
            files.append(expiry.file)
            let days = Int(expiry.daysLeft(at: now).magnitude)
            let time = days == 1 ? "1 day" : "\(days) days"
            return "the certificate in \(expiry.file) "
                + (expiry.notAfter > now ? "expires in \(time)" : "has expired \(time) ago")
        }
        guard !list.isEmpty else { return nil }
        return list.joined(separator: "; ") + "; renew and reload (docs/three-servers.md)"
    }
}
