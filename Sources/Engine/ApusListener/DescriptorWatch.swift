package import ApusCore
import ServiceLifecycle

/// Compares the number of open descriptors with the limit, and raises the condition `descriptors` while it is close to
/// it.
/// It also reports how many lines ``LogLimiter`` dropped.
package struct DescriptorWatch: Service {
    static let condition = NodeConditions.Kind("descriptors", isUnhealthy: false)
    private static let interval = Duration.seconds(1)

    let conditions: NodeConditions
    let limited: LogLimiter

    package init(conditions: NodeConditions, limited: LogLimiter) {
        (self.conditions, self.limited) = (conditions, limited)
    }

    package func run() async throws {
        await cancelWhenGracefulShutdown { await watch() }
    }

    private func watch() async {
        var pressure = DescriptorPressure()
        while (try? await Task.sleep(for: Self.interval)) != nil {
            limited.writeLeftOut()
            guard let inUse = DescriptorLimit.inUse() else { continue }
            // prlimit(1) can change the limit while the process runs.
            let limit = DescriptorLimit.current
            if pressure.update(inUse: inUse, limit: limit) {
                conditions.raise(
                    Self.condition,
                    "\(inUse) of \(limit) descriptors are in use: raise the limit of open files (LimitNOFILE of "
                        + "systemd, ulimit -n), or lower the limits that docs/operating.md names")
            } else {
                conditions.clear(Self.condition)
            }
        }
    }
}
