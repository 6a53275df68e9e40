import ApusCore
import ApusListener
import Foundation

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Metrics of this process, with the names of Prometheus' own client libraries.
enum ProcessMetrics {
    /// Text format 0.0.4. Values that cannot be read are omitted.
    static func text() -> String {
        var text = ""
        var usage = rusage()
        if getrusage(CInt(RUSAGE_SELF.rawValue), &usage) == 0 {
            let seconds = Double(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec)
            let micros = Double(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec)
            text += MetricCatalogue.text("process_cpu_seconds_total", seconds + micros / 1_000_000)
        }
        if let pages = residentPages() {
            text += MetricCatalogue.text(
                "process_resident_memory_bytes", Double(pages * sysconf(CInt(_SC_PAGESIZE))))
        }
        if let count = DescriptorLimit.inUse() {
            text += MetricCatalogue.text("process_open_fds", Double(count))
        }
        text += MetricCatalogue.text("process_max_fds", Double(DescriptorLimit.current))
        return text
    }

    /// The second field of `statm` (proc(5)).
    private static func residentPages() -> Int? {
        guard let line = try? String(contentsOfFile: "/proc/self/statm", encoding: .utf8) else { return nil }
        let fields = line.split(separator: " ")
        return fields.count > 1 ? Int(fields[1]) : nil
    }
}
