import ApusCore
import ApusListener
import ServiceLifecycle

/// Watches how near the process is to its limit of open files, and raises the condition `descriptors` while it is near.
///
/// Reports, too, how many lines ``LogLimiter`` left out.
struct DescriptorWatch: Service {
    static let condition = NodeConditions.Kind("descriptors", isUnhealthy: false)
    private static let interval = Duration.seconds(1)

    let conditions: NodeConditions
    let limited: LogLimiter

    func run() async throws {
        await cancelWhenGracefulShutdown { await watch() }
    }

    private func watch() async {
        var pressure = DescriptorPressure()
        while (try? await Task.sleep(for: Self.interval)) != nil {
            limited.writeLeftOut()
            guard let inUse = DescriptorLimit.inUse() else { continue }
            // The limit may be changed while the process runs, by prlimit(1).
            let limit = DescriptorLimit.current
            if pressure.update(inUse: inUse, limit: limit) {
                conditions.raise(
                    Self.condition,
                    "\(inUse) of \(limit) descriptors are in use: raise the limit of open files (LimitNOFILE of "
                        + "systemd, ulimit -n), or lower the bounds that docs/operating.md names")
            } else {
                conditions.clear(Self.condition)
            }
        }
    }
}
