import ApusCore
package import ApusRelay
import ServiceLifecycle

/// Notifies the service manager when the relay is open, while it is alive, and when it stops (`Type=notify`,
/// `WatchdogSec=`).
/// The relay is alive if the control thread answers. If that thread hangs, no notification is sent, and the manager
/// restarts the relay.
package struct RelayWatchdog: Service {
    /// The time that stopping takes in addition to the wait for a draining relay's clients: closing listeners, writing
    /// log lines.
    static let stopMargin = Duration.seconds(15)

    let notifier: ServiceNotifier
    let relay: RelayService

    package init(notifier: ServiceNotifier, relay: RelayService) { (self.notifier, self.relay) = (notifier, relay) }

    package func run() async throws {
        notifier.tell(.ready)
        await cancelWhenGracefulShutdown {
            guard let interval = notifier.watchdogInterval else {
                try? await gracefulShutdown()
                return
            }
            // Twice per interval, as sd_watchdog_enabled(3) recommends.
            repeat {
                if await relay.standing() != nil { notifier.tell(.watchdog) }
            } while (try? await Task.sleep(for: interval / 2)) != nil
        }
        notifier.tell(.stopping, extendedBy: relay.drainWait + Self.stopMargin)
    }
}
