import ApusCore
import ApusRelay
import ServiceLifecycle

/// Tells the service manager when the relay is open, that it is alive, and when it stops (`Type=notify`,
/// `WatchdogSec=`).
///
/// Alive means that the control thread answered; one that hangs is not told alive, so that the manager starts the relay
/// anew.
struct RelayWatchdog: Service {
    /// What stopping takes beside the wait for clients of a relay that drains: listeners that close, lines of the log.
    static let stopMargin = Duration.seconds(15)

    let notifier: ServiceNotifier
    let relay: RelayService

    func run() async throws {
        notifier.tell(.ready)
        await cancelWhenGracefulShutdown {
            guard let interval = notifier.watchdogInterval else {
                try? await gracefulShutdown()
                return
            }
            // Twice as often as is wanted, as sd_watchdog_enabled(3) advises.
            repeat {
                if await relay.standing() != nil { notifier.tell(.watchdog) }
            } while (try? await Task.sleep(for: interval / 2)) != nil
        }
        notifier.tell(.stopping, extendedBy: relay.drainWait + Self.stopMargin)
    }
}
