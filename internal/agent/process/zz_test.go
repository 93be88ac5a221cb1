package process
import ("testing";"os";"fmt";"syscall";"time")
func TestZZ(t *testing.T){
 r,err:=New(Config{InitPath:initPath,CgroupParent:os.Getenv("CGP")})
 if err!=nil {t.Fatal(err)}
 root:=t.TempDir()
 var a,b,c,d syscall.Rusage
 for i:=0;i<20;i++{ runTrue(r,root,i) }
 for round:=0;round<4;round++{
 syscall.Getrusage(syscall.RUSAGE_SELF,&a);syscall.Getrusage(syscall.RUSAGE_CHILDREN,&c)
 t0:=time.Now()
 for i:=0;i<200;i++{ if err:=runTrue(r,root,i);err!=nil{t.Fatal(err)} }
 w:=time.Since(t0)/200
 syscall.Getrusage(syscall.RUSAGE_SELF,&b);syscall.Getrusage(syscall.RUSAGE_CHILDREN,&d)
 f:=func(x,y syscall.Rusage)string{return fmt.Sprint("u ",(y.Utime.Nano()-x.Utime.Nano())/200000," s ",(y.Stime.Nano()-x.Stime.Nano())/200000," flt ",(y.Minflt-x.Minflt)/200," vcsw ",(y.Nvcsw-x.Nvcsw)/200," ivcsw ",(y.Nivcsw-x.Nivcsw)/200)}
 fmt.Println("wall",w,"self",f(a,b),"children",f(c,d))
 }
}
